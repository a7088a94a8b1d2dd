"""A step that lacks memory: no request is lost or answered twice, and smaller steps follow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builders import drain, make_core, request, tokens_of
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from simulated import SimulatedRunner, oracle
from test_state_machine import Engine, Forced, GroupedTiered, Recurrent, Staged, StagedGrouped, StagedRecurrent

from plimsoll_runtime.engine.core import EngineCore, Runner
from plimsoll_runtime.engine.kv.offload.index import TierIndex
from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext, RequestOutput
from plimsoll_runtime.engine.protocol.plan import Launched, SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.scheduler.scheduler import ALONE_TRIES, NO_MEMORY, Scheduler
from plimsoll_runtime.engine.scheduler.token_budget import (
    GOOD_STEPS,
    MOST_GOOD_STEPS,
    SmallSteps,
    StepMemoryError,
    moved_only,
)
from plimsoll_runtime.errors import EngineDeadError

NEVER = 10**6


class Short(Engine):
    """Some steps lack memory; steps planned after them only move blocks.

    Requests may end later because of smaller steps. A request that lacks memory for a single token gets an error.
    """

    shortages = 0

    @rule(count=st.integers(1, 6))
    def memory_is_short(self, count: int) -> None:
        self.shortages += count

    def _add(self, request: AddRequest) -> None:
        super()._add(request)
        self.live[request.request_id].last_step = NEVER

    def _commit(self) -> None:
        if not self.shortages or not self.steps[0].tokens:
            super()._commit()
            assert self.committed < NEVER
            return
        self.shortages -= 1
        first, *rest = self.steps
        self.steps.clear()
        self.kept.moved(first.plan)
        self.runner.spoil(first.plan)
        for step in rest:
            self._later(step.plan)
        for output in self.scheduler.undo([first, *rest]):
            assert (output.error, output.finish_reason, first.tokens) == (NO_MEMORY, "error", 1)
            del self.live[output.request_id]
        stats = self.scheduler.stats()
        assert (stats.running, stats.blocks_used) == (0, 0)
        assert stats.waiting == len(self.scheduler) == len(self.live)

    def _later(self, plan: StepPlan) -> None:
        """Run a plan after one that lacked memory."""
        self.kept.moved(moved_only(plan))
        self.runner.move(moved_only(plan))


class ShortStaged(Short, Staged):
    """Steps planned after a short one are under way, so they are computed."""

    def _later(self, plan: StepPlan) -> None:
        self.kept.begin(plan)
        self.kept.end(plan, self.runner.run(plan))


class ShortStagedGrouped(ShortStaged, StagedGrouped):
    pass


class ShortStagedRecurrent(ShortStaged, StagedRecurrent):
    pass


class ShortGroupedTiered(Short, GroupedTiered):
    pass


class ShortRecurrent(Short, Recurrent):
    pass


class ShortForced(Short, Forced):
    pass


for machine in (
    Short,
    ShortGroupedTiered,
    ShortRecurrent,
    ShortForced,
    ShortStaged,
    ShortStagedGrouped,
    ShortStagedRecurrent,
):
    machine.TestCase.settings = settings(
        max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
TestShort, TestShortForced = Short.TestCase, ShortForced.TestCase
TestShortRecurrent = ShortRecurrent.TestCase
TestShortStaged, TestShortStagedGrouped = ShortStaged.TestCase, pytest.mark.long(ShortStagedGrouped.TestCase)
TestShortStagedRecurrent = pytest.mark.long(ShortStagedRecurrent.TestCase)
TestShortGroupedTiered = pytest.mark.long(ShortGroupedTiered.TestCase)


class Scarce:
    """A runner with memory for `most` tokens in a step; `tried` are the sizes of its steps."""

    def __init__(self, inner: Runner, most: int) -> None:
        self._inner = inner
        self.most = most
        self.tried: list[int] = []

    def run(self, plan: StepPlan) -> Launched:
        self.tried.append(plan.num_tokens)
        if plan.num_tokens <= self.most:
            return self._inner.run(plan)
        assert isinstance(self._inner, SimulatedRunner)
        self._inner.spoil(plan)
        raise StepMemoryError("CUDA out of memory")


@pytest.fixture(params=[False, True], ids=["one-at-a-time", "overlapped"])
def scarce(request: pytest.FixtureRequest) -> Callable[[int], tuple[EngineCore, Scarce]]:
    """Return a function that makes a core whose runner has memory for so many tokens in a step."""

    def make(most: int) -> tuple[EngineCore, Scarce]:
        made: list[Scarce] = []

        def wrap(inner: Runner) -> Runner:
            made.append(Scarce(inner, most))
            return made[0]

        core, _ = make_core(overlap=request.param, wrap=wrap)
        return core, made[0]

    return make


def test_everyone_is_answered_as_with_memory(scarce: Callable[[int], tuple[EngineCore, Scarce]]) -> None:
    core, runner = scarce(3)
    requests = [request(f"r{i}", [i, *range(10, 20)], max_tokens=12) for i in range(6)]
    for each in requests:
        core.add(each)
    outputs = drain(core)
    for each in requests:
        told = outputs[each.request_id]
        assert tokens_of(told) == oracle(each, 256).token_ids
        assert [o.finish_reason for o in told] == [None] * (len(told) - 1) + ["length"]
    assert max(runner.tried) > 3
    assert core.stats.broken_off == 0
    assert core.stats.preemptions > 0
    core.check_integrity()


def test_steps_are_halved_and_grow_again(scarce: Callable[[int], tuple[EngineCore, Scarce]]) -> None:
    core, runner = scarce(2)
    core.add(request("r", list(range(40)), max_tokens=4))
    drain(core)
    sizes = [size for size in runner.tried if size]
    assert sizes[0] == 16
    assert [size for size in sizes if size > 2][-2:] == [8, 4]
    runner.most = 1000
    for number in range(3 * GOOD_STEPS):
        core.add(request(f"s{number}", [number % 40] * 20, max_tokens=1))
    drain(core)
    assert max(runner.tried[-5:]) == 16


def test_only_who_cannot_be_computed_alone_is_told_so(scarce: Callable[[int], tuple[EngineCore, Scarce]]) -> None:
    core, runner = scarce(0)
    core.add(request("r", list(range(9))))
    (told,) = drain(core)["r"]
    assert (told.finish_reason, told.error, told.token_ids) == ("error", NO_MEMORY, [])
    assert runner.tried[0] == 9
    assert runner.tried.count(1) == ALONE_TRIES
    runner.most = 1000
    wanted = request("s", list(range(9)))
    core.add(wanted)
    assert tokens_of(drain(core)["s"]) == oracle(wanted, 256).token_ids
    assert core.stats.broken_off == 1


def test_prefixes_that_were_computed_are_not_computed_again() -> None:
    made: list[Scarce] = []

    def wrap(inner: Runner) -> Runner:
        made.append(Scarce(inner, 1000))
        return made[0]

    core, simulated = make_core(wrap=wrap)
    core.add(request("r", list(range(33)), max_tokens=8))
    for _ in range(4):
        core.step()
    before = simulated.computed_tokens
    made[0].most = 0
    core.step()
    made[0].most = 1000
    core.step()
    assert before == 34
    # The last block had two tokens; no token of a whole prompt block is computed again.
    assert simulated.computed_tokens - before <= 3
    drain(core)


class ScarceOnce:
    """A runner that lacks memory for the first step of a kind."""

    def __init__(self, inner: Runner, kind: Callable[[StepPlan], object]) -> None:
        self._inner = inner
        self._kind = kind
        self.failed = False

    def run(self, plan: StepPlan) -> Launched:
        if self.failed or not self._kind(plan):
            return self._inner.run(plan)
        self.failed = True
        assert isinstance(self._inner, SimulatedRunner)
        self._inner.spoil(plan)
        raise StepMemoryError("CUDA out of memory")


@pytest.mark.parametrize(("prompt", "answer"), [(300, 8), (5, 70)], ids=["of-a-prompt", "of-an-answer"])
def test_nobody_goes_on_from_a_snapshot_that_was_not_saved(prompt: int, answer: int) -> None:
    made: list[ScarceOnce] = []

    def wrap(inner: Runner) -> Runner:
        made.append(ScarceOnce(inner, lambda plan: plan.snapshots))
        return made[0]

    core, _ = make_core(num_blocks=400, max_batch_tokens=512, snapshots=12, overlap=True, wrap=wrap)
    first = request("r", [i % 40 for i in range(prompt)], max_tokens=answer)
    core.add(first)
    tokens = tokens_of(drain(core)["r"])
    assert tokens == oracle(first, 1596, recurrent=True).token_ids
    assert made[0].failed
    second = request("s", [*first.prompt_token_ids, *tokens, 1, 2], max_tokens=8)
    core.add(second)
    assert tokens_of(drain(core)["s"]) == oracle(second, 1596, recurrent=True).token_ids
    assert core.stats.snapshots is not None
    assert core.stats.snapshots.resumed > 0


@pytest.mark.parametrize("kind", ["spills", "restores"])
def test_blocks_that_a_step_moved_are_where_they_should_be(kind: str) -> None:
    made: list[ScarceOnce] = []

    def wrap(inner: Runner) -> Runner:
        made.append(ScarceOnce(inner, lambda plan: plan.num_tokens and getattr(plan, kind)))
        return made[0]

    tiers = TierIndex(30, keeps=True)
    core, runner = make_core(num_blocks=17, overlap=True, wrap=wrap, tiers=lambda _: tiers)
    for number, first in enumerate([1, 20, 1, 20, 1]):
        wanted = request(f"r{number}", [(first + 3 * i) % 40 for i in range(40)], max_tokens=4)
        core.add(wanted)
        assert tokens_of(drain(core)[wanted.request_id]) == oracle(wanted, 64).token_ids
        core.check_integrity()
    assert made[0].failed
    assert runner.restored_blocks > 0


class Failing:
    """A runner that lacks memory for everything, and then loses its device."""

    def run(self, plan: StepPlan) -> Launched:
        if plan.num_tokens:
            raise StepMemoryError("CUDA out of memory")
        raise RuntimeError("the device is gone")


def test_another_error_behind_a_shortage_ends_the_engine() -> None:
    core, _ = make_core(overlap=True, wrap=lambda inner: Failing())
    core.add(request("r", list(range(40))))
    with pytest.raises(EngineDeadError, match="a step failed with RuntimeError: the device is gone"):
        core.step()
    with pytest.raises(EngineDeadError, match="the device is gone"):
        core.step()


def whole_prompts(lengths: list[int]) -> Scheduler:
    limits = Limits(num_blocks=9, block_size=64, max_len=64, max_batch_tokens=64, max_sequences=4, whole_prompts=True)
    scheduler = Scheduler(limits)
    for number, length in enumerate(lengths):
        scheduler.add(AddRequest(f"r{number}", [number] * length, RequestContext(SamplingParams(max_tokens=1), seed=0)))
    return scheduler


def test_prompts_that_cannot_be_cut_are_computed_alone() -> None:
    scheduler = whole_prompts([20, 20, 20, 50])
    step = scheduler.schedule()
    assert step is not None
    assert [len(s.token_ids) for s in step.plan.sequences] == [20, 20, 20]
    assert scheduler.undo([step]) == []
    seen, told = list[list[int]](), list[RequestOutput]()
    while (step := scheduler.schedule()) is not None:
        seen.append([len(s.token_ids) for s in step.plan.sequences])
        if seen[-1] == [50]:
            told = scheduler.undo([step])
        else:
            scheduler.commit(step, StepResult([SequenceOutput(token_id=1) for _ in step.sequences]))
        scheduler.check_integrity()
    assert seen == [[20], [20], [20], *[[50]] * ALONE_TRIES]
    assert [(each.request_id, each.error) for each in told] == [("r3", NO_MEMORY)]
    assert len(scheduler) == 0


def test_an_aborted_request_is_not_told() -> None:
    scheduler = whole_prompts([20])
    step = scheduler.schedule()
    assert step is not None
    scheduler.abort(["r0"])
    assert scheduler.undo([step]) == []
    scheduler.check_integrity()


def test_each_failure_of_larger_steps_puts_the_next_try_off() -> None:
    steps, waits = SmallSteps(4, 16, lambda: 0), list[int]()
    for _ in range(12):
        count = 1
        while steps.next(1, 0).tokens == 4:
            count += 1
        waits.append(count)
        steps.shrink(4)
    assert waits[:3] == [GOOD_STEPS + 1, 2 * GOOD_STEPS + 1, 4 * GOOD_STEPS + 1]
    assert waits[-1] == MOST_GOOD_STEPS + 1
