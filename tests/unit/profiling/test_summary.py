"""Figures of steps with known times."""

from __future__ import annotations

import pytest
from profiling_support.steps import record

from plimsoll_runtime.execution.device.peaks import Peaks
from plimsoll_runtime.profiling.summary import summarise

MACHINE = Peaks(bandwidth=1e9, rate=1e12)
"""By the steps' costs, the product takes 1 ms (memory) and the head 2 ms (compute)."""


def test_phases_add_up_and_the_servers_come_on_top() -> None:
    (figures,) = summarise([record(), record(forward=15)], MACHINE)
    assert (figures.kind, figures.steps, figures.tokens, figures.sequences) == ("decode", 2, 7, 2)
    assert figures.seconds == pytest.approx(0.015)
    phases = {p.phase: p for p in figures.phases}
    assert list(phases) == ["schedule", "forward", "head", "message"]
    assert phases["forward"].mean == pytest.approx(0.010)
    assert phases["forward"].p50 == pytest.approx(0.005)
    assert phases["forward"].p99 == pytest.approx(0.015)
    assert sum(phases[p].share for p in ("schedule", "forward", "head")) == pytest.approx(1)
    assert phases["message"].share == pytest.approx(2 / 15)


def test_each_op_stands_beside_its_roofline() -> None:
    (figures,) = summarise([record()], MACHINE)
    ops = {op.op: op for op in figures.ops}
    qkv, head, around, everything = ops["qkv"], ops["head"], ops["around"], ops["all"]
    assert (qkv.bound, head.bound, around.bound) == ("memory", "compute", "")
    assert [qkv.floor, head.floor] == pytest.approx([0.001, 0.002])
    assert [qkv.roofline, head.roofline] == pytest.approx([0.5, 0.5])
    assert around.seconds == pytest.approx(0.003)
    assert around.roofline is None
    assert everything.seconds == pytest.approx(0.009)
    assert everything.floor == pytest.approx(0.003)
    assert everything.roofline == pytest.approx(1 / 3)
    assert (everything.bytes, everything.flops) == (1_001_000, 2_001_000_000)
    assert sum(op.share or 0 for op in figures.ops if op.op != "all") == pytest.approx(1)


def test_a_decoder_that_times_nothing_has_costs_and_floors_all_the_same() -> None:
    (figures,) = summarise([record(qkv=0)], MACHINE)
    ops = {op.op: op for op in figures.ops}
    assert (ops["qkv"].seconds, ops["qkv"].share, ops["qkv"].roofline) == (None, None, None)
    assert ops["qkv"].floor == pytest.approx(0.001)
    assert ops["head"].seconds == pytest.approx(0.004)
    assert "around" not in ops


def test_prefill_and_decode_are_told_apart() -> None:
    figures = summarise([record(prefill=True), record(), record()], MACHINE)
    assert [(f.kind, f.steps) for f in figures] == [("prefill", 1), ("decode", 2)]
    assert summarise([], MACHINE) == []


def test_a_probe_that_was_disturbed_is_not_believed() -> None:
    assert Peaks(3, 40).best_of(Peaks(5, 30)) == Peaks(5, 40)
