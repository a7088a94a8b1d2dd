"""Profiled steps whose times are known, and probes that take no time."""

from __future__ import annotations

import pytest

from plimsoll_runtime.engine.step_timing import PhaseSpan, StepPhase
from plimsoll_runtime.models.ops.cost import OpCost, OpKind
from plimsoll_runtime.profiling import machine
from plimsoll_runtime.profiling.recorder import StepRecord

MS = 1_000_000
COSTS = {kind: OpCost() for kind in OpKind} | {
    OpKind.QKV: OpCost(bytes=1_000_000, flops=1_000_000),
    OpKind.HEAD: OpCost(bytes=1_000, flops=2_000_000_000),
}


def record(*, prefill: bool = False, qkv: float = 0.002, forward: int = 5, head: int = 4) -> StepRecord:
    """Schedule 1 ms, then forward and head as said, then a server's 2 ms."""
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
    """Probes of kilobytes: what they find says nothing of the machine."""
    monkeypatch.setattr(machine, "READ_BYTES", 2**16)
    monkeypatch.setattr(machine, "CPU_PRODUCT", (8, 16, 32))
    monkeypatch.setattr(machine, "CUDA_PRODUCT", (8, 16, 32))
