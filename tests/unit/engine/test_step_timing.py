"""The timeline: phases without gaps, a ring that drops the oldest, and a core that marks its phases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from builders import drain, make_core, request
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.core import EngineCore, Runner
from plimsoll_runtime.engine.protocol.plan import Launched, StepPlan
from plimsoll_runtime.engine.step_timing import PhaseSpan, StepPhase, Timeline


class Clock:
    """A clock that moves only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


def test_phases_touch_and_leave_nothing_out() -> None:
    clock = Clock()
    timeline = Timeline(8, clock)
    for _ in range(2):
        clock.now += 500  # between steps, counted for no phase
        timeline.begin()
        for phase, duration in ((StepPhase.SCHEDULE, 10), (StepPhase.FORWARD, 300), (StepPhase.COMMIT, 0)):
            clock.now += duration
            timeline.lap(phase)
    assert timeline.take() == [
        PhaseSpan(1, StepPhase.SCHEDULE, 1500, 1510),
        PhaseSpan(1, StepPhase.FORWARD, 1510, 1810),
        PhaseSpan(1, StepPhase.COMMIT, 1810, 1810),
        PhaseSpan(2, StepPhase.SCHEDULE, 2310, 2320),
        PhaseSpan(2, StepPhase.FORWARD, 2320, 2620),
        PhaseSpan(2, StepPhase.COMMIT, 2620, 2620),
    ]
    assert timeline.take() == []
    assert timeline.dropped == 0
    assert timeline.totals()[: StepPhase.FORWARD + 1] == (20e-9, 0.0, 600e-9)


def test_a_span_in_seconds() -> None:
    assert PhaseSpan(1, StepPhase.HEAD, 5, 1_500_000_005).seconds == 1.5


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_ring_needs_room(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"not {capacity}"):
        Timeline(capacity)


@given(
    capacity=st.integers(1, 7),
    actions=st.lists(st.one_of(st.just("begin"), st.just("take"), st.sampled_from(StepPhase)), max_size=60),
)
def test_the_ring_keeps_the_newest(capacity: int, actions: list[str | StepPhase]) -> None:
    clock = Clock()
    timeline = Timeline(capacity, clock)
    timeline.begin()
    kept: list[StepPhase] = []
    for action in actions:
        clock.now += 7
        if isinstance(action, StepPhase):
            timeline.lap(action)
            kept.append(action)
        elif action == "begin":
            timeline.begin()
        else:
            assert timeline.dropped == max(0, len(kept) - capacity)
            assert [span.phase for span in timeline.take()] == kept[-capacity:]
            kept = []
        timeline.check_integrity()


class MarkingRunner:
    """A runner that marks its phases, as the real one does."""

    def __init__(self, inner: Runner, timeline: Timeline) -> None:
        self._inner = inner
        self._timeline = timeline

    def run(self, plan: StepPlan) -> Launched:
        result = self._inner.run(plan)
        self._timeline.lap(StepPhase.FORWARD)
        return result


def serve_timed(timelines: Sequence[Timeline], *, overlap: bool) -> EngineCore:
    """Return a core that has served three requests; its runner has the last of the timelines."""
    core, _ = make_core(
        max_batch_tokens=8,
        max_sequences=2,
        overlap=overlap,
        timelines=timelines,
        wrap=lambda runner: MarkingRunner(runner, timelines[-1]),
    )
    for i in range(3):
        core.add(request(f"r{i}", [1, 2, 3], max_tokens=5))
    drain(core)
    return core


def phases_by_step(timeline: Timeline) -> list[list[StepPhase]]:
    """Return the phases of each step, after checking that they have no gaps."""
    timeline.check_integrity()
    spans = timeline.take()
    steps = [[span for span in spans if span.step == step] for step in sorted({span.step for span in spans})]
    for own in steps:
        assert all(before.end_ns == after.start_ns for before, after in pairwise(own))
    return [[span.phase for span in own] for own in steps]


def test_each_step_of_a_core_is_schedule_run_commit() -> None:
    timeline = Timeline()
    core = serve_timed([timeline], overlap=False)
    assert core.stats.phase_seconds == timeline.totals()
    expected = [StepPhase.SCHEDULE, StepPhase.FORWARD, StepPhase.COMMIT]
    assert phases_by_step(timeline) == [expected] * core.stats.steps


def test_steps_that_overlap_are_timed_where_they_are_planned_and_where_they_are_run() -> None:
    planned, run = Timeline(), Timeline()
    core = serve_timed([planned, run], overlap=True)
    both = zip(planned.totals(), run.totals(), strict=True)
    assert core.stats.phase_seconds == tuple(a + b for a, b in both)
    assert phases_by_step(planned) == [[StepPhase.SCHEDULE, StepPhase.WAIT, StepPhase.COMMIT]] * core.stats.steps
    assert phases_by_step(run) == [[StepPhase.FORWARD]] * core.stats.steps


def test_totals_outlive_the_ring() -> None:
    clock = Clock()
    timeline = Timeline(1, clock)
    timeline.begin()
    for phase in (*StepPhase, *StepPhase):
        clock.now += 1 + phase
        timeline.lap(phase)
    assert timeline.totals() == tuple(2 * (1 + phase) / 1e9 for phase in StepPhase)
    assert [span.phase for span in timeline.take()] == [list(StepPhase)[-1]]


def test_what_a_runner_marked_while_it_warmed_up_is_no_steps() -> None:
    clock = Clock()
    timeline = Timeline(4, clock)
    clock.now += 10**15
    timeline.lap(StepPhase.INPUTS)
    assert timeline.totals()[StepPhase.INPUTS] == 10**6
    core, _ = make_core(timelines=[timeline])
    assert set(core.stats.phase_seconds) == {0.0}
    assert timeline.take() == []
    core.add(request("r", [1], max_tokens=1))
    clock.now += 10**15
    core.step()
    assert [span.step for span in timeline.take()] == [1, 1]
    assert set(core.stats.phase_seconds) == {0.0}


def test_a_core_without_a_timeline_tells_no_times() -> None:
    core, _ = make_core()
    core.add(request("r", [1]))
    drain(core)
    assert core.stats.phase_seconds == ()


def test_a_step_without_work_leaves_no_span() -> None:
    timeline = Timeline()
    core, _ = make_core(timelines=[timeline])
    core.step()
    assert timeline.take() == []
