"""Summarises many steps in one report: time by phase, and each op with its roofline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from plimsoll_kernels.cpu.speed import Speed
from plimsoll_runtime.engine.step_timing import StepPhase
from plimsoll_runtime.execution.device.peaks import Peaks
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, total
from plimsoll_runtime.profiling.recorder import StepRecord

FORWARD_OPS = tuple(kind for kind in OpKind if kind is not OpKind.HEAD)
AROUND = "around"
ALL = "all"
SERVER_PHASES = (StepPhase.MESSAGE, StepPhase.DETOKENISE, StepPhase.EVENTS)


class PhaseFigures(msgspec.Struct, frozen=True):
    """Seconds of one phase per step, and its share of all engine phases (server phases are added on top)."""

    phase: str
    mean: float
    p50: float
    p99: float
    share: float


class OpFigures(msgspec.Struct, frozen=True):
    """An op in the mean step. `seconds` is None if the decoder did not time it; costs are 0 if unknown.

    `floor` is the least time by the roofline, `bound` its limit ("memory" or "compute"), `roofline` = floor / seconds.
    """

    op: str
    seconds: float | None
    share: float | None
    bytes: float
    flops: float
    floor: float
    bound: str
    roofline: float | None


class StepFigures(msgspec.Struct, frozen=True):
    """All steps of one kind: "prefill" (at least one prompt chunk) or "decode". `tokens`, `sequences` and `seconds` (in
    the engine's phases) are means per step.
    """

    kind: str
    steps: int
    tokens: float
    sequences: float
    seconds: float
    phases: list[PhaseFigures]
    ops: list[OpFigures]


def summarise(records: Sequence[StepRecord], machine: Peaks) -> list[StepFigures]:
    """Return the figures of prefill steps and of decode steps, if there were any."""
    kinds = (("prefill", [r for r in records if r.prefill]), ("decode", [r for r in records if not r.prefill]))
    return [_figures(kind, own, machine) for kind, own in kinds if own]


def _figures(kind: str, records: Sequence[StepRecord], machine: Peaks) -> StepFigures:
    times = {phase: sorted(_seconds(r, phase) for r in records) for phase in StepPhase}
    count = len(records)
    engine = sum(sum(times[phase]) for phase in StepPhase if phase not in SERVER_PHASES) / count
    phases = [_phase(phase, own, engine) for phase, own in times.items() if own[-1] > 0]
    return StepFigures(
        kind=kind,
        steps=count,
        tokens=sum(r.tokens for r in records) / count,
        sequences=sum(r.sequences for r in records) / count,
        seconds=engine,
        phases=phases,
        ops=_ops(records, machine, forward=_mean(times[StepPhase.FORWARD]), head=_mean(times[StepPhase.HEAD])),
    )


def _phase(phase: StepPhase, seconds: Sequence[float], engine: float) -> PhaseFigures:
    mean = _mean(seconds)
    return PhaseFigures(
        phase.name.lower(), mean, _percentile(seconds, 50), _percentile(seconds, 99), mean / engine if engine else 0.0
    )


def _ops(records: Sequence[StepRecord], machine: Peaks, *, forward: float, head: float) -> list[OpFigures]:
    """Return each op of the mean step, the rest of the forward pass ("around"), and the total."""
    count = len(records)
    seconds = {kind: sum(r.op_seconds.get(kind, 0.0) for r in records) / count for kind in FORWARD_OPS}
    timed = any(seconds.values())
    whole = forward + head
    rows = []
    for kind in (*FORWARD_OPS, OpKind.HEAD):
        costs = [r.costs[kind] for r in records if kind in r.costs]
        if costs:
            own = head if kind is OpKind.HEAD else seconds[kind] if timed else None
            rows.append(_op(kind, own, whole, costs, count, machine))
    around = forward - sum(seconds.values())
    if timed and around > 0:
        rows.append(_op(AROUND, around, whole, [], count, machine))
    floors = sum(row.floor for row in rows)
    everything = _op(ALL, whole, whole, [c for r in records for c in r.costs.values()], count, machine)
    rows.append(msgspec.structs.replace(everything, floor=floors, roofline=floors / whole if whole else None))
    return rows


def _op(
    name: str, seconds: float | None, whole: float, costs: Iterable[OpCost], steps: int, machine: Peaks
) -> OpFigures:
    """Return the figures of an op. The floor is the mean of each step's floor, because different steps may have
    different bounds.
    """
    costs = list(costs)
    cost = total(costs)
    floor = sum(map(machine.floor_seconds, costs)) / steps
    return OpFigures(
        op=name,
        seconds=seconds,
        share=seconds / whole if seconds is not None and whole else None,
        bytes=cost.bytes / steps,
        flops=cost.flops / steps,
        floor=floor,
        bound=machine.bound(cost) if costs else "",
        roofline=floor / seconds if seconds and costs else None,
    )


def _seconds(record: StepRecord, phase: StepPhase) -> float:
    return sum(span.seconds for span in record.spans if span.phase is phase)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that is at least as large as `percent` % of the values."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


class Report(msgspec.Struct, frozen=True):
    """Figures in seconds, bytes, operations and tokens. `bandwidth` and `rate` are the machine's, probed before and
    after the run.

    `kernels` is the speed of the CPU kernels, if they are used.
    """

    model: str
    architecture: str
    dtype: str
    device: str
    attention_backend: str
    threads: int
    workload: str
    batch: int
    prompt_len: int
    output_len: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    bandwidth: float
    rate: float
    kernels: Speed | None
    steps: list[StepFigures]
    provenance: dict[str, str | int]
