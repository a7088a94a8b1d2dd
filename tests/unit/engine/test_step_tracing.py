"""Recorded steps: which are chosen, their phases, and that nothing is recorded while traces are off."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count, pairwise
from typing import Any

import pytest
from builders import make_core, request
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.core import EngineCore, Runner
from plimsoll_runtime.engine.protocol.messages import OpWork, StepReason, TracedStep
from plimsoll_runtime.engine.protocol.plan import Launched, StepPlan
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError, moved_only
from plimsoll_runtime.engine.step_timing import KNOWN, StepPhase, Timeline
from plimsoll_runtime.engine.step_tracing import StepTracer, StepTracing


class Timed:
    """A runner that records its phases, as those of models do. The steps of `short` lack memory, from 0."""

    def __init__(self, runner: Runner, timeline: Timeline, short: Collection[int] = ()) -> None:
        self._runner = runner
        self._timeline = timeline
        self._short = short
        self._steps = count()

    def run(self, plan: StepPlan) -> Launched:
        self._timeline.lap(StepPhase.INPUTS)
        if next(self._steps) in self._short and plan.num_tokens > 1:
            self._runner.run(moved_only(plan))
            raise StepMemoryError("none left")
        launched = self._runner.run(plan)
        self._timeline.lap(StepPhase.FORWARD)
        return launched


def timed_core(*, overlap: bool, tracing: StepTracing | None, short: Collection[int] = ()) -> EngineCore:
    engine = Timeline()
    runner = Timeline() if overlap else engine
    wrap: Callable[[Runner], Runner] = lambda inner: Timed(inner, runner, short)  # noqa: E731
    core, _ = make_core(timelines=(engine, runner), wrap=wrap, overlap=overlap, step_tracing=tracing)
    return core


def traced_of(core: EngineCore, names: tuple[str, ...] = ("a", "b"), **options: Any) -> list[TracedStep | None]:
    for number, name in enumerate(names):
        core.add(request(name, [1 + number, 2, 3], **options))
    found = []
    while core.has_work:
        found.append(core.step().traced)
    return found


@pytest.mark.parametrize("overlap", [False, True])
def test_nothing_is_recorded_while_traces_are_off(overlap: bool) -> None:
    assert not any(traced_of(timed_core(overlap=overlap, tracing=None)))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_one_step_in_so_many_is_recorded_with_its_requests(overlap: bool, every: int) -> None:
    core = timed_core(overlap=overlap, tracing=StepTracing(every, 0.0))
    found = traced_of(core, max_tokens=12)
    steps = [step for step in found if step is not None]
    assert len(steps) == core.stats.steps // every > 1
    for step in steps:
        assert step.why is StepReason.SAMPLED
        assert set(step.request_ids) <= {"a", "b"}
        assert len(step.request_ids) == step.sequences > 0
        assert step.tokens >= step.sequences
    assert sum(step.tokens for step in steps) <= core.stats.prompt_tokens + core.stats.generated_tokens
    for before, after in pairwise(steps):
        assert before.end_ns <= after.end_ns


@pytest.mark.parametrize("overlap", [False, True])
def test_the_phases_are_those_of_this_step_and_lie_within_it(overlap: bool) -> None:
    steps = [step for step in traced_of(timed_core(overlap=overlap, tracing=StepTracing(1, 0.0))) if step]
    expected = [StepPhase.INPUTS, StepPhase.FORWARD, StepPhase.COMMIT]
    if not overlap:
        expected.insert(0, StepPhase.SCHEDULE)
    for step in steps:
        assert [phase for phase, _, _ in step.phases] == expected
        assert all(step.start_ns <= start <= end <= step.end_ns for _, start, end in step.phases)
        assert all(before[2] <= after[1] for before, after in pairwise(step.phases))
    forwards = [phase for step in steps for phase in step.phases if phase[0] == StepPhase.FORWARD]
    assert all(before[2] <= after[1] for before, after in pairwise(forwards)), "a pass belongs to two steps"


class Ops:
    """An op meter that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def work(self, plan: StepPlan, *, measured: bool) -> list[OpWork]:
        self.calls.append("measured" if measured else "costs")
        return [OpWork("attention", 0.5 if measured else None, 7, 8)]


def tracer(ops: Ops, *, every: int = 0, slow: float = 3.0, overlapping: bool = False) -> StepTracer:
    clock = count(100)
    return StepTracer(StepTracing(every, slow), Timeline(clock=lambda: next(clock)), None, ops, overlapping=overlapping)


def end(found: StepTracer, seconds: float, usual: float | None) -> TracedStep | None:
    found.begin(1)
    found.judge(50, seconds, usual)
    return found.end(StepPlan([], spills=[(1, 2)], restores=[(3, 4)] * 2, block_copies=[(5, 6)] * 3), 1, lambda: ["r"])


def test_a_slow_step_is_recorded_with_what_is_usual() -> None:
    ops = Ops()
    found = tracer(ops)
    assert end(found, 3.0, 1.0) is None
    assert end(found, 99.0, None) is None
    step = end(found, 3.1, 1.0)
    assert step is not None
    assert (step.why, step.usual_seconds, step.start_ns) == (StepReason.SLOW, 1.0, 50)
    assert (step.spilled, step.restored, step.copied) == (1, 2, 3)
    assert step.ops == [OpWork("attention", None, 7, 8)]
    assert ops.calls == ["costs"]
    assert end(tracer(ops, slow=0.0), 100.0, 1.0) is None


def test_ops_are_measured_in_sampled_steps_that_do_not_overlap() -> None:
    ops = Ops()
    assert end(tracer(ops, every=1), 1.0, 1.0) is not None
    assert end(tracer(ops, every=1, overlapping=True), 1.0, 1.0) is not None
    assert ops.calls == ["begin", "measured", "costs"]


def test_a_step_without_tokens_counts_as_none() -> None:
    ops = Ops()
    found = tracer(ops, every=2)
    for tokens in (0, 1, 0, 1):
        found.begin(tokens)
        if tokens:
            found.judge(50, 1.0, None)
        assert (found.end(StepPlan([]), tokens, list) is not None) == (len(ops.calls) == 2)


def test_a_step_that_failed_is_not_recorded() -> None:
    found = tracer(Ops(), every=1)
    assert end(found, 1.0, None) is not None
    found.begin(1)
    assert found.end(StepPlan([]), 1, list) is None


def test_a_mean_of_few_steps_says_nothing() -> None:
    core = timed_core(overlap=False, tracing=StepTracing(0, 1e-9))
    found = traced_of(core, ("a",), max_tokens=2 * KNOWN)
    assert not any(found[:KNOWN])
    steps = [step for step in found if step]
    assert steps
    assert all(step.why is StepReason.SLOW and step.usual_seconds for step in steps)


def test_the_wait_of_ranks_is_that_of_the_step_alone() -> None:
    waited = {0: 1.0}
    found = StepTracer(StepTracing(1, 0.0), Timeline(), None, waited=lambda: dict(waited))
    found.begin(1)
    waited |= {0: 1.5, 1: 0.25}
    found.judge(50, 1.0, None)
    step = found.end(StepPlan([]), 1, list)
    assert step is not None
    assert step.waited == {0: 0.5, 1: 0.25}


@given(st.booleans(), st.sets(st.integers(0, 12)), st.integers(1, 3))
def test_each_record_has_its_own_phases_though_steps_lack_memory(overlap: bool, short: set[int], every: int) -> None:
    core = timed_core(overlap=overlap, tracing=StepTracing(every, 0.0), short=short)
    steps = [step for step in traced_of(core, max_tokens=9) if step is not None]
    for step in steps:
        phases = [phase for phase, _, _ in step.phases]
        assert phases[-3:] == [StepPhase.INPUTS, StepPhase.FORWARD, StepPhase.COMMIT]
        assert all(before[2] <= after[1] for before, after in pairwise(step.phases))
    forwards = [phase for step in steps for phase in step.phases if phase[0] == StepPhase.FORWARD]
    assert all(before[2] <= after[1] for before, after in pairwise(forwards))


def test_the_phases_are_found_though_a_discarded_step_had_begun() -> None:
    runner = Timeline()
    found = StepTracer(StepTracing(1, 0.0), Timeline(), runner, overlapping=True)
    found.submitted(alone=True)
    found.submitted(alone=False)
    found.begin(1)
    for _ in range(2):  # both have begun when the result of the first one shows that memory is lacking
        runner.begin()
        runner.lap(StepPhase.INPUTS)
    found.submitted(alone=True)
    runner.begin()
    runner.lap(StepPhase.FORWARD)
    found.begin(1)
    found.judge(50, 1.0, None)
    step = found.end(StepPlan([]), 1, list)
    assert step is not None
    assert [phase for phase, _, _ in step.phases] == [StepPhase.FORWARD]
