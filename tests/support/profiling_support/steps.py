"""Profiled steps with known times, and probes that take no time."""

from __future__ import annotations

import pytest

from plimsoll_runtime.engine.step_timing import PhaseSpan, StepPhase
from plimsoll_runtime.execution.device import peaks
from plimsoll_runtime.models.ops.cost import OpCost, OpKind
from plimsoll_runtime.profiling.recorder import StepRecord

MS = 1_000_000
COSTS = {kind: OpCost() for kind in OpKind} | {
    OpKind.QKV: OpCost(bytes=1_000_000, flops=1_000_000),
    OpKind.HEAD: OpCost(bytes=1_000, flops=2_000_000_000),
}


def record(*, prefill: bool = False, qkv: float = 0.002, forward: int = 5, head: int = 4) -> StepRecord:
    """Return a step of 1 ms schedule, the given forward and head times, and 2 ms of server phases."""
    spans, at = [], 0
    for phase, length in (
        (StepPhase.SCHEDULE, 1),
        (StepPhase.FORWARD, forward),
        (StepPhase.HEAD, head),
        (StepPhase.MESSAGE, 2),
    ):
        spans.append(PhaseSpan(1, phase, at * MS, (at + length) * MS))
        at += length
    return StepRecord(7, 2, prefill, spans, {"qkv": qkv} if qkv else {}, COSTS)


def quicken_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink the probes to kilobytes, so that they are quick (and their results meaningless)."""
    monkeypatch.setattr(peaks, "READ_BYTES", 2**16)
    monkeypatch.setattr(peaks, "CPU_PRODUCT", (8, 16, 32))
    monkeypatch.setattr(peaks, "CUDA_PRODUCT", (8, 16, 32))
