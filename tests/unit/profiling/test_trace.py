"""Traces are valid in Chrome's format and agree with the timeline, on torch's clock if torch's events are included."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from profiling_support.steps import MS, record

from plimsoll_runtime.engine.step_timing import PhaseSpan, StepPhase, Timeline
from plimsoll_runtime.profiling.recorder import StepRecord
from plimsoll_runtime.profiling.trace import (
    OPS,
    PROCESS,
    SERVER,
    STEPS,
    TRACKS,
    _offset_us,
    timeline_events,
    with_torch_events,
    write_trace,
)

ROUNDING = 1e-3
"""Microseconds by which two computations of a time may differ."""
CLOCK_ERROR_US = 5.0
"""The largest error of the offset between two clocks: half the length of the shortest anchor, about 3 us."""


def later(step: StepRecord, by: int) -> StepRecord:
    """Return the same step, `by` nanoseconds later."""
    spans = [PhaseSpan(s.step, s.phase, s.start_ns + by, s.end_ns + by) for s in step.spans]
    return StepRecord(step.tokens, step.sequences, step.prefill, spans, step.op_seconds, step.costs)


def spans_of(events: Sequence[dict[str, Any]], track: int) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and e["pid"] == PROCESS and e["tid"] == track]


def check_chrome(events: Sequence[dict[str, Any]]) -> None:
    """Check required keys, and that the spans of each track are in order and properly nested."""
    for event in events:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert isinstance(event["ts"], float | int)
    for track in TRACKS:
        spans = spans_of(events, track)
        assert all(a["ts"] <= b["ts"] + ROUNDING for a, b in pairwise(spans))
        ends: list[float] = []
        for span in spans:
            while ends and ends[-1] <= span["ts"] + ROUNDING:
                ends.pop()
            assert not ends or span["ts"] + span["dur"] <= ends[-1] + ROUNDING, "spans cross"
            ends.append(span["ts"] + span["dur"])


def test_steps_hold_their_phases_and_a_server_has_a_track_of_its_own(tmp_path: Path) -> None:
    steps = [record(prefill=True), later(record(), 20 * MS)]
    write_trace(tmp_path / "t.json", timeline_events(steps, zero_ns=0))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    check_chrome(events)
    assert [e["name"] for e in spans_of(events, STEPS)] == [
        *("prefill 1", "schedule", "forward", "head"),
        *("decode 2", "schedule", "forward", "head"),
    ]
    step, schedule, forward, head = spans_of(events, STEPS)[4:]
    assert (step["ts"], step["dur"]) == (20_000, 10_000)
    assert (schedule["ts"], forward["ts"], head["ts"]) == (20_000, 21_000, 26_000)
    assert step["args"] == {"tokens": 7, "sequences": 2}
    assert [(e["name"], e["ts"], e["dur"]) for e in spans_of(events, SERVER)] == [
        ("message", 10_000, 2_000),
        ("message", 30_000, 2_000),
    ]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == TRACKS


def test_sums_of_ops_lie_end_to_end_in_their_forward_pass() -> None:
    step = record()
    step = StepRecord(1, 1, False, step.spans, {"down": 0.001, "embed": 0.002, "head": 0.5}, step.costs)
    events = timeline_events([step], zero_ns=0)
    check_chrome(events)
    assert [(e["name"], e["ts"], e["dur"]) for e in spans_of(events, OPS)] == [
        ("embed", 1_000, 2_000),
        ("down", 3_000, 1_000),
    ]


def test_torchs_events_are_on_the_same_clock() -> None:
    """Every product computed in a phase is within the phase's span."""

    def run() -> list[StepRecord]:
        timeline, steps = Timeline(), []
        for _ in range(3):
            timeline.begin()
            timeline.lap(StepPhase.SCHEDULE)
            torch.ones(200, 200) @ torch.ones(200, 200)
            timeline.lap(StepPhase.FORWARD)
            steps.append(StepRecord(1, 1, False, timeline.take(), {}, record().costs))
        return steps

    events = with_torch_events(run, torch.device("cpu"))
    check_chrome([e for e in events if e["pid"] == PROCESS])
    products = [e for e in events if e.get("cat") == "cpu_op" and e["name"] == "aten::mm"]
    forwards = [e for e in spans_of(events, STEPS) if e["name"] == "forward"]
    assert (len(products), len(forwards)) == (3, 3)
    for product, forward in zip(products, forwards, strict=True):
        assert forward["ts"] <= product["ts"] + CLOCK_ERROR_US
        assert product["ts"] + product["dur"] <= forward["ts"] + forward["dur"] + CLOCK_ERROR_US


@given(
    offset=st.integers(-(10**9), 10**9),
    waits=st.lists(st.tuples(*[st.floats(0, 1e5)] * 3), min_size=1, max_size=8),
)
def test_a_preempted_anchor_does_not_move_the_clock(offset: int, waits: list[tuple[float, float, float]]) -> None:
    """One anchor is read at once; at any of the others the thread may be preempted, before, in and after it."""
    anchors, before_ns, after_ns, now = [], [], [], 0.0
    for first, inside, last in [(0.5, 1.0, 0.5), *waits]:
        before_ns.append(round(now * 1000))
        anchors.append((now + first + offset, inside))
        now += first + inside + last
        after_ns.append(round(now * 1000))
    assert _offset_us(anchors, before_ns, after_ns) == pytest.approx(offset, abs=0.51)
