"""What is kept of each profiled step, and the loop that fills it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest
from plimsoll_runtime.engine.step_timing import PhaseSpan
from plimsoll_runtime.models.ops.cost import OpCost, OpKind
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.profiling.server_path import ServerPath
from plimsoll_runtime.profiling.watch import Watch


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: its rows and sequences, whether any of them is a prompt's, its phases, its ops' seconds and costs."""

    tokens: int
    sequences: int
    prefill: bool
    spans: Sequence[PhaseSpan]
    op_seconds: Mapping[str, float]
    costs: Mapping[OpKind, OpCost]


def record_steps(
    core: EngineCore, watch: Watch, requests: Sequence[AddRequest], server: ServerPath | None
) -> list[StepRecord]:
    """Serve the requests to their end. What is computed here about a step lies between the steps, in no phase."""
    records: list[StepRecord] = []
    for request in requests:
        core.add(request)
    watch.timeline.take()
    watch.take_op_seconds()
    while core.has_work:
        done = core.step()
        if server is not None:
            server.send(done)
        records.append(_record(watch))
    return records


def _record(watch: Watch) -> StepRecord:
    plan = watch.plan
    assert plan is not None, "a step has run, so there is a plan"
    outline = watch.decoder.outline
    return StepRecord(
        tokens=plan.num_tokens,
        sequences=len(plan.sequences),
        prefill=any(len(s.token_ids) > 1 for s in plan.sequences),
        spans=watch.timeline.take(),
        op_seconds=watch.take_op_seconds(),
        costs=outline.step_cost(plan, watch.decoder.dtype.itemsize) if isinstance(outline, Program) else {},
    )
