"""Records each profiled step: its plan, phases and ops, and the server's work on its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch

from plimsoll_runtime.api.http.errors import json_line
from plimsoll_runtime.api.schemas.outputs import CompletionAnswer, CompletionChoice
from plimsoll_runtime.engine.core import EngineCore, Runner
from plimsoll_runtime.engine.protocol.messages import AddRequest, StepOutputs
from plimsoll_runtime.engine.protocol.plan import Launched, StepPlan
from plimsoll_runtime.engine.step_timing import PhaseSpan, StepPhase, Timeline
from plimsoll_runtime.models.decoder import Decoder, TorchDecoder
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, TimesOps
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.profiling.op_timer import CudaOpTimer, HostOpTimer, MarkedDecoder
from plimsoll_runtime.text.output import OutputText
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.version import FINGERPRINT


class Watch:
    """Observes an engine's decoder on `device` and the plan of each step. A torch decoder gets marks that time
    its ops.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.timeline = Timeline()
        self.plan: StepPlan | None = None
        self._decoder: Decoder | None = None

    def watch_decoder(self, decoder: Decoder) -> Decoder:
        if isinstance(decoder, TorchDecoder):
            decoder = MarkedDecoder(decoder, CudaOpTimer() if self._device.type == "cuda" else HostOpTimer())
        self._decoder = decoder
        return decoder

    def watch_runner(self, runner: Runner) -> Runner:
        return _WatchedRunner(runner, self)

    @property
    def decoder(self) -> Decoder:
        """The decoder of the built engine."""
        assert self._decoder is not None, "no engine was built with this watch"
        return self._decoder

    def take_op_seconds(self) -> Mapping[str, float]:
        """Return the seconds of the steps since the last call, by kind of op; {} if the decoder does not time ops."""
        return self.decoder.take_seconds() if isinstance(self.decoder, TimesOps) else {}

    def show_ranges(self, shown: bool) -> None:
        """Set whether torch's profiler gets the ops of a torch decoder as ranges."""
        if isinstance(self.decoder, MarkedDecoder):
            self.decoder.show_ranges(shown)


class _WatchedRunner:
    """A runner that stores the last plan in the watch."""

    def __init__(self, runner: Runner, watch: Watch) -> None:
        self._runner = runner
        self._watch = watch

    def run(self, plan: StepPlan) -> Launched:
        self._watch.plan = plan
        return self._runner.run(plan)


class ServerPath:
    """The server's work on the outputs of some requests, as streams of completions.

    It encodes the message, texts and events, without sockets. A running server does this in another process, in
    parallel with the next step; here it follows the step, so that it can be measured.
    """

    def __init__(self, requests: Iterable[AddRequest], tokenizer: Tokenizer, timeline: Timeline) -> None:
        self._texts = {r.request_id: OutputText(r.context.params, tokenizer) for r in requests}
        self._timeline = timeline
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(StepOutputs)

    def send(self, done: StepOutputs) -> list[bytes]:
        """Return the events for a step's outputs. Call it right after the step, because its first phase starts at the
        step's end.
        """
        arrived = self._decoder.decode(self._encoder.encode(done))
        self._timeline.lap(StepPhase.MESSAGE)
        deltas = [(output.request_id, self._texts[output.request_id].push(output)) for output in arrived.outputs]
        self._timeline.lap(StepPhase.DETOKENISE)
        events = []
        for name, delta in deltas:
            choice = CompletionChoice(0, delta.text, finish_reason=delta.finish_reason)
            event = CompletionAnswer(name, 0, "profile", [choice], FINGERPRINT)
            events.append(b"data: " + json_line(event) + b"\n\n")
        self._timeline.lap(StepPhase.EVENTS)
        return events


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: its numbers of tokens and sequences, whether it contains prompt chunks, its phases, and its ops'
    seconds and costs.
    """

    tokens: int
    sequences: int
    prefill: bool
    spans: Sequence[PhaseSpan]
    op_seconds: Mapping[str, float]
    costs: Mapping[OpKind, OpCost]


def record_steps(
    core: EngineCore, watch: Watch, requests: Sequence[AddRequest], server: ServerPath | None
) -> list[StepRecord]:
    """Serve the requests to their end, and return a record of each step. The recording itself happens between the steps
    and counts for no phase.
    """
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
