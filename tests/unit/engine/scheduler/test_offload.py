"""Restoring blocks from tiers, and the sequences that wait for it or do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builders import drain, make_core, request, tokens_of
from simulated import POISON, SimulatedRunner, oracle
from simulated_disk import disk_of

from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.kv.offload.costs import RETRY_AFTER
from plimsoll_runtime.engine.kv.offload.index import TierIndex
from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.protocol.messages import AddRequest
from plimsoll_runtime.engine.protocol.plan import StepPlan, StepResult
from plimsoll_runtime.engine.scheduler.admission import PREFETCH_NS
from plimsoll_runtime.engine.scheduler.batch_builder import Step
from plimsoll_runtime.engine.scheduler.policies import SECOND_NS, ByPriority, Policy
from plimsoll_runtime.engine.scheduler.scheduler import Scheduler
from plimsoll_runtime.execution.kv.offload.host_memory import runs

PREFIXES = [[(5 * i + j) % 39 for j in range(24)] for i in range(8)]
"""Six blocks each. The pool of these tests holds one and a half of them, the frames two and a half."""


class Tiered:
    """An engine with a pool that is too small, and a disk."""

    def __init__(
        self, *, frames: int = 16, places: int = 128, keeps: bool = False, faults: float = 0.0, **options: Any
    ) -> None:
        self.core, self.runner = make_core(
            num_blocks=11, max_batch_tokens=40, tiers=self._tiers(frames, places, keeps, faults), **options
        )

    def ask(self, number: int, name: str = "r", **params: Any) -> int:
        """Request a prefix and one token, and check the text; return the number of computed tokens."""
        wanted = request(name, [*PREFIXES[number], 40 + number], max_tokens=1, **params)
        before = self.runner.computed_tokens
        self.core.add(wanted)
        self.outputs = drain(self.core)[name]
        assert tokens_of(self.outputs) == oracle(wanted, 40).token_ids
        self.disk.tick(100)
        return self.runner.computed_tokens - before

    def fill(self, **params: Any) -> list[int]:
        """Request all prefixes, so that the first half is on the disk only; return the computed tokens of each."""
        return [self.ask(i, **params) for i in range(8)]

    def again(self, **params: Any) -> list[int]:
        """Request the first half again."""
        return [self.ask(i, **params) for i in range(4)]

    def _tiers(self, frames: int, places: int, keeps: bool, faults: float) -> Callable[[SimulatedRunner], TierIndex]:
        def make(runner: SimulatedRunner) -> TierIndex:
            self.disk = disk_of(runner, faults)
            self.index = TierIndex(frames, places, self.disk if places else None, keeps=keeps)
            return self.index

        return make


def test_prefixes_that_do_not_fit_come_back_from_the_disk() -> None:
    engine = Tiered()
    assert engine.fill() == [25] * 8
    assert engine.again() == [1] * 4
    assert engine.outputs[0].cached_tokens == 24
    stats = engine.core.stats
    assert stats.tiers is not None
    assert stats.tiers.hit_tokens == stats.cache_hit_tokens == 4 * 24
    assert stats.tiers.loaded == engine.disk.reads_done == 24
    assert stats.tiers.failed == 0


def test_blocks_that_nobody_used_of_late_are_moved_beside_earlier_steps() -> None:
    tiers = TierIndex(64, keeps=True)
    core, runner = make_core(num_blocks=31, max_batch_tokens=40, tiers=lambda _: tiers)
    for number in [*range(8), *range(4)]:
        core.add(request("r", [*PREFIXES[number], 40], max_tokens=1))
        drain(core)
    assert runner.restored_blocks == 4 * 6
    assert runner.early_moves == 8, "of four prefixes that left the pool, and of four that came back"


def test_blocks_come_back_in_runs() -> None:
    """Consecutive frames are copied to consecutive blocks."""
    plans: list[StepPlan] = []

    def noted(runner: SimulatedRunner) -> TierIndex:
        run = runner.run

        def note(plan: StepPlan) -> StepResult:
            plans.append(plan)
            return run(plan)

        runner.run = note  # type: ignore[method-assign]
        return TierIndex(64, keeps=True)

    core, _ = make_core(num_blocks=11, max_batch_tokens=40, tiers=noted)
    for number in [*range(8), *range(4)]:
        core.add(request("r", [*PREFIXES[number], 40], max_tokens=1))
        drain(core)
    restores = [plan.restores for plan in plans if plan.restores]
    assert [len(each) for each in restores] == [6] * 4
    assert all(len(runs(each)) <= 3 for each in restores)


def test_without_tiers_they_are_computed_again() -> None:
    core, runner = make_core(num_blocks=11, max_batch_tokens=40)
    for i in range(12):
        core.add(request("r", [*PREFIXES[i % 8], 40 + i % 8], max_tokens=1))
        drain(core)
    assert runner.computed_tokens == 12 * 25
    assert core.stats.tiers is None


def test_host_memory_alone_is_a_tier_and_nobody_waits_for_it() -> None:
    engine = Tiered(frames=60, places=0, keeps=True)
    assert engine.fill() == [25] * 8
    assert engine.again() == [1] * 4
    assert engine.core.stats.tiers is not None
    assert engine.core.stats.tiers.loaded == 0


def test_a_disk_that_fails_costs_tokens_and_no_answer() -> None:
    for faults in (0.3, 1.0):
        engine = Tiered(faults=faults)
        assert engine.fill() == [25] * 8
        assert max(engine.again()) == 25
    assert engine.core.stats.tiers is not None
    assert engine.core.stats.tiers.failed > 0


def test_a_disk_that_breaks_is_asked_for_nothing_more() -> None:
    engine = Tiered()
    engine.fill()
    engine.disk.give_up()
    assert engine.again() == [25] * 4
    assert engine.core.stats.tiers is not None
    assert engine.core.stats.tiers.disk_blocks == 0
    assert not engine.disk.busy


def test_a_prefix_longer_than_the_frames_comes_back_in_part() -> None:
    engine = Tiered(frames=4)
    for _ in range(3):
        engine.fill()
    assert engine.again() == [9] * 4, "four blocks of four tokens at once"


def test_a_prompt_that_is_on_the_disk_whole_computes_its_last_token() -> None:
    engine = Tiered()
    engine.fill()
    wanted = request("whole", PREFIXES[0], max_tokens=3)
    before = engine.runner.computed_tokens
    engine.core.add(wanted)
    outputs = drain(engine.core)["whole"]
    assert tokens_of(outputs) == oracle(wanted, 40).token_ids
    assert outputs[0].cached_tokens == 23
    assert engine.runner.computed_tokens - before == 1 + 2


def test_what_is_forgotten_is_forgotten_everywhere() -> None:
    engine = Tiered(keeps=True)
    engine.fill()
    engine.core.reset_prefix_cache()
    engine.disk.tick(100)
    assert engine.disk.files == {}
    assert engine.again() == [25] * 4


def test_what_is_forgotten_after_the_disk_was_given_up_is_found_by_no_engine() -> None:
    engine = Tiered()
    engine.fill()
    engine.disk.give_up()
    assert engine.again() == [25] * 4
    assert engine.disk.files, "the next engine may find them"
    engine.core.reset_prefix_cache()
    engine.disk.tick(100)
    assert engine.disk.files == {}


def test_what_a_broken_request_computed_is_not_kept() -> None:
    engine = Tiered(keeps=True)
    engine.core.add(request("broken", [*PREFIXES[0], 40], stop_token_ids=(POISON,)))
    assert drain(engine.core)["broken"][0].error is not None
    for i in range(1, 8):
        engine.ask(i)
    assert engine.ask(0) == 25


def test_a_tenant_finds_nothing_of_another_in_the_tiers() -> None:
    engine = Tiered()
    assert engine.fill(salt="tenant-a") == [25] * 8
    assert engine.again(salt="tenant-b") == [25] * 4
    assert engine.again() == [25] * 4
    assert engine.again(salt="tenant-a") == [1] * 4


def test_two_that_want_the_same_prefix_read_and_restore_it_once() -> None:
    engine = Tiered()
    engine.fill()
    reads, restored, computed = engine.disk.reads_done, engine.runner.restored_blocks, engine.runner.computed_tokens
    for name in "ab":
        engine.core.add(request(name, [*PREFIXES[0], 40], max_tokens=1))
    assert len(drain(engine.core)) == 2
    assert engine.disk.reads_done - reads == engine.runner.restored_blocks - restored == 6
    assert engine.runner.computed_tokens - computed == 2


class Clocked:
    """A scheduler whose disk and clock tests control, with prefixes on the disk."""

    def __init__(self, *, frames: int = 16, prefixes: int = 8, policy: Policy | None = None) -> None:
        self.now_ns = SECOND_NS
        self.step_ns = 0
        limits = Limits(num_blocks=11, block_size=4, max_len=40, max_batch_tokens=40, max_sequences=4)
        self.runner = SimulatedRunner(11, 4, 40, 4)
        self.disk = disk_of(self.runner)
        self.index = TierIndex(frames, 1000, self.disk, keeps=False)
        self.scheduler = Scheduler(limits, policy, lambda: self.now_ns, self.index)
        for i in range(prefixes):
            self.scheduler.add(self.about(i, f"before-{i}"))
            while len(self.scheduler):
                self.run(self.plan())
            self.disk.tick(100)

    def about(self, number: int, name: str, **params: Any) -> AddRequest:
        prefix = [(5 * number + j) % 39 for j in range(24)]
        return request(name, [*prefix, 40 + number % 8], **{"max_tokens": 1, **params})

    def holders(self) -> list[str]:
        """Return the sequences with a prefetch."""
        tiers = self.scheduler._kv.tiers
        return [] if tiers is None else [s.request_id for s in tiers.prefetches]

    def plan(self) -> Step:
        step = self.scheduler.schedule()
        assert step is not None
        return step

    def run(self, step: Step) -> list[str]:
        """Run and commit a step; return the requests with outputs."""
        result = self.runner.run(step.plan)
        self.now_ns += self.step_ns
        outputs = self.scheduler.commit(step, result)
        self.scheduler.check_integrity()
        return [output.request_id for output in outputs]


def test_others_go_ahead_of_who_waits_for_the_disk() -> None:
    engine = Clocked()
    engine.scheduler.add(engine.about(0, "waits"))
    engine.scheduler.add(request("goes", [1, 2, 3], max_tokens=2))
    assert engine.scheduler.stats().waiting == 2
    assert engine.run(engine.plan()) == ["goes"]
    engine.disk.tick(100)
    step = engine.plan()
    assert [len(s.token_ids) for s in step.plan.sequences] == [1, 1], "one token of each: the rest came back"
    assert len(step.plan.restores) == 6
    assert engine.run(step) == ["goes", "waits"]


def test_the_read_starts_before_there_is_room() -> None:
    engine = Clocked()
    engine.scheduler.add(request("large", [1] * 30, max_tokens=3))
    engine.run(engine.plan())
    engine.scheduler.add(engine.about(0, "waits"))
    assert engine.disk.busy, "no room for it yet, and it is being read"
    engine.disk.tick(100)
    while len(engine.scheduler):
        step = engine.plan()
        engine.run(step)
    assert len(step.plan.restores) == 6


def test_a_disk_that_hangs_is_not_waited_for() -> None:
    engine = Clocked()
    engine.scheduler.add(engine.about(0, "waits"))
    assert engine.scheduler.schedule() is None
    engine.now_ns += PREFETCH_NS - 1
    assert engine.scheduler.schedule() is None
    engine.now_ns += 1
    step = engine.plan()
    assert step.plan.num_tokens == 25
    assert engine.run(step) == ["waits"]
    engine.disk.tick(100)
    assert engine.scheduler.schedule() is None
    engine.scheduler.check_integrity()


def test_who_waits_for_the_disk_can_be_aborted_and_can_miss_a_deadline() -> None:
    engine = Clocked()
    engine.scheduler.add(engine.about(0, "aborted"))
    engine.scheduler.add(engine.about(0, "late", deadline=1.0))
    engine.scheduler.abort(["aborted"])
    engine.scheduler.check_integrity()
    engine.now_ns += SECOND_NS
    (missed,) = engine.scheduler.expire()
    assert (missed.request_id, missed.finish_reason) == ("late", "deadline")
    assert len(engine.scheduler) == 0
    engine.disk.tick(100)
    assert engine.scheduler.schedule() is None
    engine.scheduler.check_integrity()


def test_a_block_may_go_and_come_back_within_one_step() -> None:
    """It is spilled for one request, and the next request of the same step needs it."""
    engine = Clocked()
    engine.scheduler.add(request("first", [1] * 16, max_tokens=1))
    engine.scheduler.add(engine.about(3, "second"))
    step = engine.plan()
    spilled, restored = {frame for _, frame in step.plan.spills}, {frame for frame, _ in step.plan.restores}
    assert engine.run(step)
    while len(engine.scheduler):
        engine.disk.tick(100)
        engine.run(engine.plan())
    assert spilled or restored


def answered(engine: Clocked, number: int, name: str) -> int:
    """Request a prefix on the disk, and check the text; return the number of restored tokens."""
    wanted = engine.about(number, name)
    before = engine.scheduler.stats().tiers
    engine.scheduler.add(wanted)
    engine.disk.tick(100)
    step = engine.plan()
    result = engine.runner.run(step.plan)
    engine.now_ns += engine.step_ns
    (output,) = engine.scheduler.commit(step, result)
    engine.scheduler.check_integrity()
    assert output.token_ids == oracle(wanted, 40).token_ids
    engine.disk.tick(100)
    engine.scheduler.schedule()
    after = engine.scheduler.stats().tiers
    assert before is not None
    assert after is not None
    return after.hit_tokens - before.hit_tokens


def test_what_is_read_slower_than_it_is_computed_is_computed() -> None:
    engine = Clocked(prefixes=20)
    engine.step_ns, engine.disk.read_ns = 6 * SECOND_NS, 2 * SECOND_NS
    assert answered(engine, 0, "first") == 24, "what either takes is not known yet"
    engine.scheduler.add(request("new", [1] * 24, max_tokens=1))
    engine.run(engine.plan())
    reads = engine.disk.reads_done
    assert [answered(engine, i, f"slow-{i}") for i in range(1, 5)] == [0] * 4, "a second a block, against two"
    stats = engine.scheduler.stats().tiers
    assert engine.disk.reads_done == reads
    assert stats is not None
    assert stats.passed == 4 * 6
    engine.step_ns = 60 * SECOND_NS
    for i in range(3):
        engine.scheduler.add(request(f"slower-{i}", [2 + i] * 24, max_tokens=1))
        engine.run(engine.plan())
    assert answered(engine, 6, "read") == 24, "computing got slower than the disk"


def test_a_disk_that_was_slow_is_tried_again_by_count() -> None:
    engine = Clocked(prefixes=38)
    engine.step_ns, engine.disk.read_ns = SECOND_NS, 2 * SECOND_NS
    assert answered(engine, 0, "first") == 24
    engine.disk.read_ns = 0
    found = [answered(engine, 1 + i % 30, f"r{i}") for i in range(80)]
    assert found.index(24) == RETRY_AFTER
    assert found[-10:] == [24] * 10, "it is fast now, and that is known"


def test_who_waits_long_is_counted_once_among_those_that_go_without() -> None:
    engine = Clocked(prefixes=20)
    engine.step_ns, engine.disk.read_ns = SECOND_NS, 10 * SECOND_NS
    assert answered(engine, 0, "first") == 24
    engine.scheduler.add(request("large", [1] * 30, max_tokens=9))
    engine.run(engine.plan())
    engine.scheduler.add(engine.about(1, "waits"))
    for _ in range(6):
        assert engine.run(engine.plan()) == ["large"]
    stats = engine.scheduler.stats().tiers
    assert stats is not None
    assert stats.passed == 6, "blocks of one prefix"
    assert not engine.disk.reads


def test_the_core_waits_for_the_disk_when_there_is_nothing_else() -> None:
    engine = Tiered()
    engine.fill()
    core: EngineCore = engine.core
    core.add(request("r", [*PREFIXES[0], 40], max_tokens=1))
    steps = core.stats.steps
    assert core.step().outputs == []
    assert core.stats.steps == steps
    assert core.has_work
    assert drain(core)["r"]


def crowd(**options: Any) -> Clocked:
    """Take all four slots by long outputs, and queue 30 requests whose prefixes are on the disk."""
    engine = Clocked(frames=40, prefixes=38, **options)
    for i in range(4):
        engine.scheduler.add(request(f"long-{i}", [i], max_tokens=8, priority=-20))
    engine.run(engine.plan())
    for i in range(30):
        engine.scheduler.add(engine.about(i, f"r{i}"))
    return engine


def test_who_is_far_from_the_front_has_nothing_read() -> None:
    engine = crowd()
    assert engine.holders() == ["r0"], "no sequence can start, and one is next"
    engine.disk.tick(1000)
    engine.run(engine.plan())
    assert engine.holders() == ["r0"]
    assert engine.disk.reads_done == 6


def test_everybody_comes_near_and_nobody_computes_what_is_on_the_disk() -> None:
    engine = crowd()
    before, told = engine.runner.computed_tokens, []
    for _ in range(200):
        if (step := engine.scheduler.schedule()) is not None:
            told += engine.run(step)
        assert len(engine.holders()) <= 4 + 1
        engine.disk.tick(6)
    assert [name for name in told if name.startswith("r")] == [f"r{i}" for i in range(30)]
    assert engine.runner.computed_tokens - before == 4 * 7 + 30, "the rest of the answers, and a token of each prompt"


def test_the_next_ones_have_their_prefix_read_while_all_slots_are_taken() -> None:
    engine = crowd()
    engine.scheduler.abort(["r0"])
    engine.run(engine.plan())
    assert engine.holders() == ["r1"]
    engine.scheduler.add(engine.about(0, "first", priority=-9))
    assert engine.holders() == ["r1"], "first come, first served"


def test_who_falls_behind_lets_go_of_what_was_read_and_has_it_read_again() -> None:
    engine = crowd(policy=ByPriority(level_ns=1000 * SECOND_NS))
    engine.disk.tick(1000)
    engine.scheduler.add(engine.about(29, "urgent", priority=-9))
    for _ in range(2):
        engine.run(engine.plan())
        engine.disk.tick(1000)
    assert engine.holders() == ["urgent"]
    told: list[str] = []
    while len(engine.scheduler):
        if (step := engine.scheduler.schedule()) is not None:
            told += engine.run(step)
        engine.disk.tick(6)
    assert [name for name in told if "long" not in name][:2] == ["urgent", "r0"]
    assert engine.runner.restored_blocks == 31 * 6


def test_as_many_stand_aside_as_are_near_and_who_has_nothing_to_read_goes_ahead() -> None:
    engine = Clocked(frames=40, prefixes=38)
    for i in range(30):
        engine.scheduler.add(engine.about(i, f"r{i}"))
    assert engine.scheduler.schedule() is None, "the sixth waits for one of the five"
    assert engine.holders() == [f"r{i}" for i in range(5)]
    engine.scheduler.abort([f"r{i}" for i in range(5, 30)])
    engine.scheduler.add(request("goes", [1, 2, 3], max_tokens=1))
    assert engine.run(engine.plan()) == ["goes"]
    engine.disk.tick(1000)
    assert engine.run(engine.plan()) == ["r0"], "the pool holds one of them at a time"


def test_a_disk_that_hangs_holds_up_nobody_for_ever() -> None:
    engine = Clocked(frames=40, prefixes=38)
    for i in range(30):
        engine.scheduler.add(engine.about(i, f"r{i}"))
    told: list[str] = []
    for _ in range(60):
        if (step := engine.scheduler.schedule()) is not None:
            told += engine.run(step)
        else:
            engine.now_ns += PREFETCH_NS
    assert sorted(told) == sorted(f"r{i}" for i in range(30))
