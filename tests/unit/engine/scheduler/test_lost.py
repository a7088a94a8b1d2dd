"""All KV blocks are lost at any instant: every request ends with the tokens that it would have had."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import drain, make_core, request, tokens_of
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from kept import KeptBeside
from simulated import SimulatedRunner, oracle
from test_state_machine import MOST_BLOCKS, Engine, Forced, Grouped, Staged, StagedGrouped, StagedRecurrent

from plimsoll_runtime.engine.core import Runner
from plimsoll_runtime.engine.protocol.messages import AddRequest, GroupStats
from plimsoll_runtime.engine.protocol.plan import Launched, StepPlan
from plimsoll_runtime.engine.recovery import GenerationLostError
from plimsoll_runtime.engine.scheduler.scheduler import LOST_EACH_TIME, MOST_LOSSES

NEVER = 10**6


class Lost(Engine):
    """Some steps lose the device: a new runner, without slots and with an empty cache, replaces the old one."""

    losses = all_losses = 0

    @rule(count=st.integers(1, 10))
    def lose(self, count: int) -> None:
        self.losses += count

    def resize(self, more: int) -> None:
        """Do nothing: the cache of a group of ranks has a fixed size."""

    def _add(self, request: AddRequest) -> None:
        super()._add(request)
        self.live[request.request_id].last_step = NEVER

    def _commit(self) -> None:
        if not self.losses:
            super()._commit()
            return
        self.losses -= 1
        self.all_losses += 1
        for output in self.scheduler.lost(self.steps):
            assert (output.error, output.finish_reason) == (LOST_EACH_TIME, "error")
            assert self.all_losses > MOST_LOSSES
            del self.live[output.request_id]
        self.steps.clear()
        old = self.runner
        sizes = (len(old.layers[0]), old.block_size, old.max_batch_tokens, old.max_sequences)
        kind = {"recurrent": self.recurrent, "forces": self.forces}
        self.runner = SimulatedRunner(*sizes, self.groups, **kind, most_forced=old.most_forced)
        self.kept = KeptBeside(self.runner, MOST_BLOCKS)
        stats = self.scheduler.stats()
        assert (stats.running, stats.blocks_used, stats.blocks_cached) == (0, 0, 0)
        assert stats.waiting == len(self.scheduler) == len(self.live)


class LostGrouped(Lost, Grouped):
    pass


class LostForced(Lost, Forced):
    pass


class LostStaged(Lost, Staged):
    pass


class LostStagedGrouped(Lost, StagedGrouped):
    pass


class LostStagedRecurrent(Lost, StagedRecurrent):
    pass


for machine in (Lost, LostGrouped, LostForced, LostStaged, LostStagedGrouped, LostStagedRecurrent):
    machine.TestCase.settings = settings(
        max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
TestLostStaged = LostStaged.TestCase
TestLostStagedGrouped = pytest.mark.long(LostStagedGrouped.TestCase)
TestLostStagedRecurrent = pytest.mark.long(LostStagedRecurrent.TestCase)
TestLost, TestLostGrouped, TestLostForced = Lost.TestCase, LostGrouped.TestCase, LostForced.TestCase


class Replaced:
    """A runner that is lost in the steps with these numbers, and its recovery, which takes `waits` calls."""

    stats = GroupStats()

    def drain(self) -> None:
        pass

    def __init__(self, inner: Runner, lost: Sequence[int], waits: int) -> None:
        assert isinstance(inner, SimulatedRunner)
        self._inner = inner
        self._lost = set(lost)
        self._waits = waits
        self._left = 0
        self._steps = 0
        self.descriptors = ()

    def run(self, plan: StepPlan) -> Launched:
        if self._left:
            raise GenerationLostError
        self._steps += 1
        if self._steps in self._lost:
            self._left = self._waits
            self._renew()
            raise GenerationLostError
        return self._inner.run(plan)

    def check(self) -> None:
        """Nothing ends while no step runs."""

    def wait(self, seconds: float) -> bool:
        self._left = max(0, self._left - 1)
        return not self._left

    def _renew(self) -> None:
        self._inner.slots.clear()
        for layer in self._inner.layers:
            for block in layer:
                block[:] = [None] * len(block)


class Poisoned(Replaced):
    """A runner that is lost in each step with a prompt that begins with a certain token."""

    def __init__(self, inner: Runner, token: int) -> None:
        super().__init__(inner, (), waits=1)
        self._token = token
        self._slots = set[int]()

    def run(self, plan: StepPlan) -> Launched:
        self._slots -= set(plan.freed_slots)
        self._slots |= {init.slot for init in plan.new_slots if init.prompt_ids[0] == self._token}
        if any(each.slot in self._slots for each in plan.sequences):
            self._slots.clear()
            self._renew()
            self._left = 1
            raise GenerationLostError
        return super().run(plan)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("lost", [(1,), (3,), (5, 6, 9), tuple(range(4, 14))])
def test_everyone_is_answered_as_without_a_loss(overlap: bool, lost: tuple[int, ...]) -> None:
    made: list[Replaced] = []

    def wrap(inner: Runner) -> Runner:
        made.append(Replaced(inner, lost, waits=3))
        return made[0]

    core, _ = make_core(overlap=overlap, wrap=wrap)
    core.recovery = made[0]
    requests = [request(f"r{i}", [i, *range(10, 20)], max_tokens=12) for i in range(6)]
    for each in requests:
        core.add(each)
    outputs = drain(core)
    for each in requests:
        told = outputs[each.request_id]
        assert tokens_of(told) == oracle(each, 256).token_ids
        assert [o.finish_reason for o in told] == [None] * (len(told) - 1) + ["length"]
    assert core.stats.broken_off == 0
    assert not core.stats.recovering
    core.check_integrity()


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_request_that_ends_the_runner_each_time_ends_alone(stages: int) -> None:
    """The runner is lost in every step of one request; all others are answered."""
    made: list[Poisoned] = []

    def wrap(inner: Runner) -> Runner:
        made.append(Poisoned(inner, token=49))
        return made[0]

    core, _ = make_core(wrap=wrap, pipeline_parallel=stages)
    core.recovery = made[0]
    requests = [request(f"r{i}", [i, *range(10, 20)], max_tokens=12) for i in range(5)]
    for each in (*requests[:3], request("poison", [49] * 9, max_tokens=12), *requests[3:]):
        core.add(each)
    outputs = drain(core)
    for each in requests:
        assert tokens_of(outputs[each.request_id]) == oracle(each, 256).token_ids
    [*_, ended] = outputs["poison"]
    assert (ended.finish_reason, ended.error) == ("error", LOST_EACH_TIME)
    core.check_integrity()


def test_requests_end_if_nothing_replaces_the_runner() -> None:
    made: list[Replaced] = []

    def wrap(inner: Runner) -> Runner:
        made.append(Replaced(inner, [2], waits=10**9))
        return made[0]

    core, _ = make_core(wrap=wrap, recover_seconds=0.0)
    core.recovery = made[0]
    core.add(request("first", [1, 2, 3], max_tokens=12))
    outputs = [core.step() for _ in range(3)]
    assert outputs[1].stats.recovering
    [ended] = outputs[2].outputs
    assert (ended.request_id, ended.finish_reason) == ("first", "unavailable")
    core.add(request("second", [1, 2, 3], max_tokens=12))
    [ended] = core.step().outputs
    assert (ended.request_id, ended.finish_reason) == ("second", "unavailable")
    assert "were not replaced" in (ended.error or "")
    core.check_integrity()
