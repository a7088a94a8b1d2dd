"""The plans of the scheduler: order, sharing, preemption."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from builders import drain, make_core, request, tokens_of, with_context
from simulated import POISON, SimulatedRunner, oracle

from plimsoll_runtime.engine.kv.manager import PROBE_LOOKUPS
from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.protocol.messages import unpack
from plimsoll_runtime.engine.protocol.plan import LAST_CHOSEN, StepPlan, StepResult
from plimsoll_runtime.engine.scheduler.batch_builder import Step
from plimsoll_runtime.engine.scheduler.policies import ENOUGH, REFRESHES, SECOND_NS, new_policy
from plimsoll_runtime.engine.scheduler.scheduler import Scheduler
from plimsoll_runtime.errors import UsageError


class Bench:
    """A scheduler and a runner whose steps can be inspected and delayed."""

    def __init__(
        self,
        num_blocks: int = 65,
        block_size: int = 4,
        budget: int = 16,
        sequences: int = 4,
        policy: str = "fcfs",
        clock: Callable[[], int] = time.monotonic_ns,
        paced: bool = False,
        burst_tokens: int = 512,
    ) -> None:
        max_len = (num_blocks - 1) * block_size
        limits = Limits(num_blocks, block_size, max_len, budget, sequences, paced=paced, burst_tokens=burst_tokens)
        self.scheduler = Scheduler(limits, new_policy(policy), clock)
        self.runner = SimulatedRunner(num_blocks, block_size, budget, sequences)

    def add(self, name: str, prompt: Sequence[int], max_tokens: int = 8, **params: Any) -> None:
        self.scheduler.add(request(name, list(prompt), max_tokens=max_tokens, **params))

    def blocks(self, slot: int) -> list[int]:
        """Return the runner's block table of a slot."""
        return self.runner.slots[slot].tables[0].blocks

    def plan(self) -> Step:
        step = self.scheduler.schedule()
        assert step is not None
        return step

    def run(self, step: Step | None = None) -> StepPlan:
        """Run and commit a step, the next one by default."""
        step = step or self.plan()
        self.scheduler.commit(step, self.runner.run(step.plan))
        self.scheduler.check_integrity()
        return step.plan


def sizes(plan: StepPlan) -> list[tuple[int, int]]:
    """Return (slot, tokens) of each scheduled sequence."""
    return [(s.slot, len(s.token_ids)) for s in plan.sequences]


def test_decodes_come_first_and_prompts_take_what_is_left() -> None:
    bench = Bench()
    bench.add("talker", [1, 2])
    assert sizes(bench.run()) == [(0, 2)]
    bench.add("reader", range(40))
    bench.add("late", [1])
    assert sizes(bench.run()) == [(0, 1), (1, 15)]
    assert sizes(bench.run()) == [(0, 1), (1, 15)]
    last = bench.run()
    assert sizes(last) == [(0, 1), (1, 10), (2, 1)]
    assert [s.sample for s in last.sequences] == [True, True, True]


def test_a_burst_is_served_in_small_steps_and_decodes_go_on_in_every_fourth() -> None:
    bench = Bench(num_blocks=200, budget=64, sequences=16, paced=True, burst_tokens=16)
    for i in range(4):
        bench.add(f"talker-{i}", [i, 40], max_tokens=50)
    bench.run()
    for i in range(8):
        bench.add(f"reader-{i}", range(i, i + 24))
    steps = [bench.run().sequences for _ in range(8)]
    talkers = [[s.slot for s in step if s.slot < 4] for step in steps]
    assert talkers == [[], [], [], [0, 1, 2, 3], [], [], [], [0, 1, 2, 3]]
    assert [sum(len(s.token_ids) for s in step if s.start < 24 and s.slot >= 4) for step in steps] == [16] * 8


def test_a_burst_that_leaves_room_in_a_small_step_holds_nobody_up() -> None:
    bench = Bench(num_blocks=200, budget=64, sequences=16, paced=True, burst_tokens=32)
    bench.add("talker", [1, 40], max_tokens=50)
    bench.run()
    bench.add("reader", range(24))
    assert sorted(sizes(bench.run())) == [(0, 1), (1, 24)]


def test_a_burst_takes_no_step_from_those_that_decode_when_nobody_can_be_let_in() -> None:
    bench = Bench(num_blocks=200, budget=64, sequences=2, paced=True, burst_tokens=16)
    for name in ("a", "b", "waits", "waits, too"):
        bench.add(name, [1, 40], max_tokens=50)
    bench.run()
    assert [sizes(bench.run()) for _ in range(4)] == [[(0, 1), (1, 1)]] * 4


def test_a_paced_step_cuts_few_prompts_small_beside_many_decodes() -> None:
    bench = Bench(num_blocks=2000, budget=512, sequences=64, paced=True)
    for i in range(40):
        bench.add(f"talker-{i}", [i, 100], max_tokens=50)
    assert len(bench.run().sequences) == 40
    bench.add("reader", range(1000, 1200))
    assert sizes(bench.run())[40:] == [(40, 64)]
    assert [sizes(bench.run())[40:] for _ in range(2)] == [[(40, 64)]] * 2
    assert sizes(bench.run())[40:] == [(40, 8)]
    assert len(bench.run().sequences) == 41


def test_a_paced_step_is_whole_while_many_wait_or_few_decode() -> None:
    bench = Bench(num_blocks=2000, budget=512, sequences=64, paced=True)
    for i in range(7):
        bench.add(f"talker-{i}", [i, 100], max_tokens=50)
    bench.run()
    for i in range(2):
        bench.add(f"reader-{i}", range(1000 * i, 1000 * i + 300))
    assert sizes(bench.run())[7:] == [(7, 300), (8, 205)]
    assert sizes(bench.run())[8:] == [(8, 64)]
    assert sizes(bench.run())[8:] == [(8, 31)]


def test_only_the_last_chunk_of_a_prompt_samples() -> None:
    bench = Bench()
    bench.add("reader", range(40))
    assert [bench.run().sequences[0].sample for _ in range(4)] == [False, False, True, True]


def test_a_budget_smaller_than_the_batch_serves_the_oldest() -> None:
    bench = Bench(budget=2)
    for name in "abc":
        bench.add(name, [1], max_tokens=3)
    assert sizes(bench.run()) == [(0, 1), (1, 1)]
    assert sizes(bench.run()) == [(0, 1), (1, 1)]
    assert sizes(bench.run()) == [(0, 1), (1, 1)]
    plan = bench.run()
    assert sizes(plan) == [(0, 1)]
    assert sorted(plan.freed_slots) == [0, 1]


def test_slots_are_taken_from_the_smallest() -> None:
    bench = Bench()
    bench.add("long", [1], max_tokens=9)
    bench.add("short", [1], max_tokens=1)
    bench.add("other", [1], max_tokens=9)
    assert [s.slot for s in bench.run().sequences] == [0, 1, 2]
    bench.add("next", [1])
    plan = bench.run()
    assert plan.freed_slots == [1]
    assert [init.slot for init in plan.new_slots] == [1]


def test_requests_that_arrive_together_compute_a_common_prefix_once() -> None:
    """64 requests with 96 common tokens and 4 of their own run in one step, with less than a tenth of the separate
    work.
    """
    core, runner = make_core(num_blocks=1000, max_batch_tokens=1000, max_sequences=64)
    common = [i % 40 for i in range(96)]
    for i in range(64):
        core.add(request(f"r{i}", [*common, 40, i % 40, i // 40, 41], max_tokens=1))
    outputs = core.step().outputs
    assert len(outputs) == 64
    assert runner.computed_tokens == 96 + 64 * 4
    assert sum(o.cached_tokens for o in outputs) == 63 * 96


def test_a_second_request_shares_the_first_ones_prefix() -> None:
    core, runner = make_core()
    prompt = list(range(22))
    core.add(request("first", prompt))
    first = drain(core)["first"]
    before = runner.computed_tokens
    core.add(request("second", prompt))
    second = drain(core)["second"]
    assert (first[0].cached_tokens, second[0].cached_tokens) == (0, 20)
    assert runner.computed_tokens - before == 2 + 7
    assert tokens_of(first) == tokens_of(second)


def test_an_answer_is_a_prefix_too() -> None:
    core, _ = make_core()
    prompt = list(range(10))
    core.add(request("turn-1", prompt, max_tokens=9))
    answer = tokens_of(drain(core)["turn-1"])
    core.add(request("turn-2", [*prompt, *answer, 3, 4]))
    assert drain(core)["turn-2"][0].cached_tokens == 16


def test_a_prompt_that_is_cached_whole_takes_the_last_block_over_when_nobody_holds_it() -> None:
    core, runner = make_core()
    prompt = list(range(20))
    for name in ("first", "second", "third"):
        core.add(request(name, prompt))
        outputs = drain(core)[name]
        assert tokens_of(outputs) == oracle(request(name, prompt), 256).token_ids
    assert outputs[0].cached_tokens == 19
    assert runner.copies == 0


def test_a_prompt_that_is_cached_whole_copies_the_last_block_when_it_is_held() -> None:
    bench = Bench()
    prompt = list(range(8))
    bench.add("first", prompt)
    bench.run()
    bench.add("second", prompt)
    plan = bench.run()
    second = plan.sequences[1]
    assert (second.start, list(second.token_ids)) == (7, [7])
    assert plan.block_copies == [(bench.blocks(0)[1], bench.blocks(1)[1])]
    bench.run()
    assert bench.blocks(1)[:2] == bench.blocks(0)[:2], "the copy has become equal, so it is given back"


def test_a_block_that_is_written_in_the_same_step_is_shared_but_not_copied() -> None:
    bench = Bench(budget=40)
    bench.add("first", range(8))
    bench.add("second", range(8))
    plan = bench.run()
    _, second = plan.sequences
    assert plan.block_copies == []
    assert (second.start, len(second.token_ids)) == (4, 4)
    assert bench.blocks(1)[0] == bench.blocks(0)[0]
    assert bench.blocks(1)[1] != bench.blocks(0)[1]


def test_equal_answers_are_merged_while_they_run() -> None:
    core, _ = make_core()
    for i in range(4):
        core.add(request(f"r{i}", [1, 2, 3, 4], max_tokens=33))
    for _ in range(32):
        core.step()
    assert core.stats.blocks_used == 8 + 4, "8 full blocks in common, and one of its own for each"


def test_a_salt_shares_nothing_with_another() -> None:
    core, _ = make_core()
    cached = []
    for name, salt in (("a", "tenant-a"), ("b", "tenant-b"), ("none", ""), ("again", "tenant-a")):
        core.add(request(name, list(range(20)), salt=salt))
        cached.append(drain(core)[name][0].cached_tokens)
    assert cached == [0, 0, 0, 19]


def test_without_prefix_caching_nothing_is_found() -> None:
    core, _ = make_core(prefix_caching=False)
    for name in ("a", "b"):
        core.add(request(name, list(range(20))))
        assert drain(core)[name][0].cached_tokens == 0
    assert core.stats.blocks_cached == 0


def test_forgotten_prefixes_are_not_found() -> None:
    core, _ = make_core()
    core.add(request("a", list(range(20))))
    drain(core)
    core.reset_prefix_cache()
    core.add(request("b", list(range(20))))
    assert drain(core)["b"][0].cached_tokens == 0


def test_prompt_logprobs_need_every_position_computed() -> None:
    core, _ = make_core()
    core.add(request("a", list(range(20))))
    drain(core)
    wanted = request("b", list(range(20)), prompt_logprobs=0)
    core.add(wanted)
    first = drain(core)["b"][0]
    assert first.cached_tokens == 0
    assert first.prompt_logprobs is not None
    assert [p.logprob for p in unpack(first.prompt_logprobs)] == oracle(wanted, 256).prompt_logprobs


@pytest.mark.parametrize("caching", [True, False])
def test_prompt_logprobs_survive_a_preemption_amid_the_prompt(caching: bool) -> None:
    core, _ = make_core(num_blocks=9, max_batch_tokens=4, prefix_caching=caching)
    core.add(request("old", [9, 8, 7], max_tokens=20))
    core.step()
    wanted = request("scored", list(range(22)), max_tokens=2, prompt_logprobs=0)
    core.add(wanted)
    told = [core.step() for _ in range(8)]
    assert told[-1].stats.preemptions == 1
    assert not any(o.request_id == "scored" for t in told for o in t.outputs), "it was amid its prompt"
    outputs = drain(core)
    first = outputs["scored"][0]
    assert first.prompt_logprobs is not None
    assert [p.logprob for p in unpack(first.prompt_logprobs)] == oracle(wanted, 32).prompt_logprobs
    assert tokens_of(outputs["scored"]) == oracle(wanted, 32).token_ids


def test_the_newest_gives_way_when_blocks_run_out() -> None:
    bench = Bench(num_blocks=7)
    bench.add("old", [1, 2, 3], max_tokens=20)
    bench.add("new", [4, 5, 6], max_tokens=20)
    bench.run()
    plans = []
    while len(bench.scheduler):
        plans.append(bench.run())
    assert bench.scheduler.stats().preemptions == 1
    alone = next(p for p in plans if p.freed_slots)
    assert [s.slot for s in alone.sequences] == [0]
    assert alone.freed_slots == [1]
    init = next(p.new_slots[0] for p in plans if p.new_slots)
    assert list(init.prompt_ids) == [4, 5, 6]
    assert len(init.output_ids) > 1, "earlier output is not generated again"


def test_blocks_run_out_and_everyone_still_finishes() -> None:
    core, _ = make_core(num_blocks=11)
    wanted = [request(f"r{i}", [i, i + 1, i + 2], max_tokens=20) for i in range(6)]
    for add in wanted:
        core.add(add)
    outputs = drain(core)
    assert core.stats.preemptions > 0
    assert {n: tokens_of(o) for n, o in outputs.items()} == {r.request_id: oracle(r, 40).token_ids for r in wanted}


def test_whoever_is_preempted_finds_its_own_blocks_again() -> None:
    core, runner = make_core(num_blocks=13, max_batch_tokens=32)
    core.add(request("old", [1, 2, 3], max_tokens=30))
    core.add(request("new", [4, 5, 6], max_tokens=30))
    drain(core)
    assert core.stats.preemptions > 0
    assert runner.computed_tokens < 3 + 3 + 30 + 30 + core.stats.preemptions * 24


def test_a_step_can_be_planned_while_another_runs() -> None:
    bench = Bench(budget=8)
    bench.add("talker", [1, 2])
    bench.add("reader", range(20))
    first = bench.plan()
    second = bench.plan()
    assert sizes(first.plan) == [(0, 2), (1, 6)]
    assert sizes(second.plan) == [(0, 1), (1, 7)]
    assert second.plan.sequences[0].token_ids == (LAST_CHOSEN,), "the talker's next token is not known yet"
    bench.run(first)
    third = bench.plan()
    assert sizes(third.plan) == [(0, 1), (1, 7)]
    bench.run(second)
    bench.run(third)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_planning_ahead_leaves_as_much_to_be_found(ahead: int) -> None:
    bench = Bench()
    bench.add("first", [1, 2, 3], max_tokens=10)
    steps: deque[Step] = deque()
    while len(bench.scheduler):
        while len(steps) <= ahead and (step := bench.scheduler.schedule()):
            steps.append(step)
        bench.run(steps.popleft())
    assert bench.scheduler.stats().blocks_cached == 3, "12 of the 13 tokens were computed"


def test_nothing_is_planned_behind_a_last_token_that_is_still_to_come() -> None:
    bench = Bench()
    bench.add("talker", [1, 2], max_tokens=2)
    first, second = bench.plan(), bench.plan()
    assert bench.scheduler.schedule() is None
    bench.run(first)
    assert bench.scheduler.schedule() is None
    bench.run(second)
    assert len(bench.scheduler) == 0


def test_what_was_planned_behind_a_stop_token_comes_to_nothing() -> None:
    wanted = request("talker", [1, 2], max_tokens=20)
    stop = oracle(wanted, 50).token_ids[3]
    bench = Bench()
    bench.add("talker", [1, 2], max_tokens=20, stop_token_ids=(stop,))
    steps = deque([bench.plan()])
    while len(bench.scheduler):
        steps.append(bench.plan())
        bench.run(steps.popleft())
    assert [sizes(step.plan) for step in steps] == [[(0, 1)]]
    assert bench.scheduler.stats().generated_tokens == 4
    bench.run(steps.popleft())
    assert bench.scheduler.stats().generated_tokens == 4
    assert bench.scheduler.stats().blocks_used == 0


def test_whoever_is_preempted_with_a_token_to_come_waits_for_it() -> None:
    bench = Bench(num_blocks=6, block_size=1)
    bench.add("old", [1])
    bench.add("new", [3])
    under_way, ahead = bench.plan(), bench.plan()
    while not bench.scheduler.stats().preemptions:
        bench.run(under_way)
        under_way, ahead = ahead, bench.plan()
    bench.scheduler.abort(["old"])
    assert bench.scheduler.schedule() is None, "its last token is not known yet"
    bench.run(under_way)
    bench.run(ahead)
    init = bench.run().new_slots[0]
    assert [*init.prompt_ids, *init.output_ids] == [3, *oracle(request("new", [3], max_tokens=2), 5).token_ids]


def test_those_that_run_keep_a_spare_block_each() -> None:
    bench = Bench(num_blocks=6)
    bench.add("old", [1, 2, 3])
    bench.add("small", [4] * 8)
    bench.add("large", [5] * 8)
    assert sizes(bench.run()) == [(0, 3), (1, 8)]
    assert bench.scheduler.stats().waiting == 1, "two blocks are free, and two sequences may need them"


def test_an_abort_while_a_step_runs_makes_its_result_void() -> None:
    bench = Bench()
    bench.add("gone", [1, 2])
    bench.add("stays", [3])
    step = bench.plan()
    bench.scheduler.abort(["gone"])
    outputs = bench.scheduler.commit(step, bench.runner.run(step.plan))
    assert [o.request_id for o in outputs] == ["stays"]
    assert len(bench.scheduler) == 1


def test_an_abort_while_a_block_waits_to_be_merged_leaks_nothing() -> None:
    bench = Bench()
    bench.add("first", range(8))
    bench.run()
    bench.add("second", range(8), prompt_logprobs=0)
    step = bench.plan()
    assert step.merges
    bench.scheduler.check_integrity([step])
    bench.scheduler.abort(["first", "second"])
    bench.run(step)
    assert bench.scheduler.stats().blocks_used == 0


def test_a_result_of_the_wrong_length_is_refused() -> None:
    bench = Bench()
    bench.add("r", [1])
    with pytest.raises(ValueError, match="returned 0 outputs for 1"):
        bench.scheduler.commit(bench.plan(), StepResult([]))


def test_a_cache_smaller_than_a_sequence_is_refused() -> None:
    with pytest.raises(UsageError, match="100 tokens, but the KV cache holds only 36"):
        Scheduler(Limits(num_blocks=10, block_size=4, max_len=100, max_batch_tokens=8, max_sequences=1))


class Clock:
    """A clock that moves only by `wait`."""

    def __init__(self) -> None:
        self.now_ns = SECOND_NS

    def __call__(self) -> int:
        return self.now_ns

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)


def names(bench: Bench, plan: StepPlan) -> list[str]:
    """Return the requests of a plan, named by the first token of their prompts."""
    return [chr(bench.runner.slots[s.slot].init.prompt_ids[0] % 20 + ord("a")) for s in plan.sequences]


def test_the_urgent_takes_a_slot_from_the_last_that_it_outranks() -> None:
    bench = Bench(sequences=2, policy="priority")
    bench.add("a", [0], priority=1)
    bench.add("b", [1], priority=2)
    assert names(bench, bench.run()) == ["a", "b"]
    bench.add("c", [2])
    bench.add("d", [3], priority=1)
    assert names(bench, bench.run()) == ["a", "c"]
    assert bench.scheduler.stats().preemptions == 1
    assert names(bench, bench.run()) == ["c", "a"], "the more urgent first"
    rest = []
    while len(bench.scheduler):
        rest.append(names(bench, bench.run()))
    assert "b" in rest[-1], "preempted sequences finish in the end"


def test_the_urgent_takes_blocks_from_those_that_it_outranks_as_many_as_it_needs() -> None:
    bench = Bench(num_blocks=15, budget=64, policy="priority")
    bench.add("a", [0] * 12)
    bench.add("b", [1] * 12, priority=1)
    bench.add("c", [2] * 12, priority=2)
    bench.run()
    bench.add("d", [3] * 14)
    plan = bench.run()
    assert names(bench, plan) == ["a", "b", "d"]
    assert bench.scheduler.stats().preemptions == 1


def test_several_give_way_in_one_step() -> None:
    bench = Bench(num_blocks=12, budget=64, policy="priority")
    for i, name in enumerate("abc"):
        bench.add(name, [i] * 10, priority=1)
    bench.run()
    bench.add("d", [3] * 20)
    assert names(bench, bench.run()) == ["a", "d"]
    assert bench.scheduler.stats().preemptions == 2


def test_nobody_gives_way_when_that_would_not_let_the_urgent_in() -> None:
    bench = Bench(num_blocks=11, budget=64, policy="priority")
    bench.add("a", [0] * 20)
    bench.add("b", [1] * 8, priority=1)
    bench.run()
    bench.add("c", [2] * 30)
    assert names(bench, bench.run()) == ["a", "b"]
    assert bench.scheduler.stats().preemptions == 0


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "prefix"])
def test_other_policies_leave_a_running_sequence_its_place(policy: str) -> None:
    bench = Bench(sequences=1, policy=policy)
    bench.add("a", [0], max_tokens=20)
    bench.run()
    bench.add("b", [1], max_tokens=1)
    assert names(bench, bench.run()) == ["a"]


def test_the_shortest_job_is_told_by_those_that_have_ended() -> None:
    bench = Bench(sequences=1, policy="sjf")
    for i in range(ENOUGH):
        bench.add(f"r{i}", [i], max_tokens=64, stop_token_ids=tuple(range(POISON)), ignore_eos=False)
        bench.run()
    bench.add("short", [0], max_tokens=2, ignore_eos=True)
    bench.add("learnt", [1], max_tokens=64, ignore_eos=False, stop_token_ids=tuple(range(POISON)))
    assert names(bench, bench.run()) == ["b"]


@pytest.mark.parametrize(
    ("policy", "first", "second", "victim"),
    [
        ("fcfs", {}, {}, "b"),
        ("priority", {"priority": 1}, {}, "a"),
        ("deadline", {"deadline": 50}, {"deadline": 40}, "a"),
        ("sjf", {"max_tokens": 24}, {"max_tokens": 20}, "a"),
    ],
)
def test_who_gives_way_when_blocks_run_out(
    policy: str, first: dict[str, Any], second: dict[str, Any], victim: str
) -> None:
    bench = Bench(num_blocks=7, policy=policy)
    bench.add("a", [0, 5, 6], **({"max_tokens": 20} | first))
    bench.add("b", [1, 5, 6], **({"max_tokens": 20} | second))
    while not bench.scheduler.stats().preemptions:
        left = names(bench, bench.run())
    assert left == sorted({"a", "b"} - {victim})


def test_the_urgent_reads_before_a_long_prompt_goes_on() -> None:
    bench = Bench(policy="priority")
    bench.add("a", [0] * 60)
    bench.run()
    bench.add("b", [1] * 4, priority=-1)
    assert sizes(bench.run()) == [(1, 4), (0, 12)]


def test_the_longest_cached_prefix_goes_first_even_if_it_is_cached_later() -> None:
    bench = Bench(sequences=1, policy="prefix")
    bench.add("a", [*range(12), 19], max_tokens=2)
    bench.run()
    bench.add("b", [41] * 13, max_tokens=1)
    bench.add("c", [*range(12), 18], max_tokens=1)
    bench.run()
    assert list(bench.run().new_slots[0].prompt_ids)[-1] == 18
    assert list(bench.run().new_slots[0].prompt_ids)[-1] == 41


def test_a_prefix_that_is_evicted_brings_nobody_ahead() -> None:
    bench = Bench(sequences=1, policy="prefix")
    bench.add("a", [*range(12), 19], max_tokens=1)
    bench.run()
    bench.add("b", [41] * 13, max_tokens=1)
    bench.add("c", [*range(12), 18], max_tokens=1)
    bench.scheduler.forget_prefixes()
    assert list(bench.run().new_slots[0].prompt_ids)[-1] == 41


def test_looking_for_prefixes_is_bounded_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(sequences=1, policy="prefix")
    bench.add("a", [0], max_tokens=90)
    for i in range(200):
        bench.add(f"r{i}", [1 + i % 40] * 60)
    looked_up: list[bytes] = []
    find = bench.scheduler._kv.pool.find

    def noted(name: bytes) -> int | None:
        looked_up.append(name)
        return find(name)

    monkeypatch.setattr(bench.scheduler._kv.pool, "find", noted)
    for _ in range(30):
        bench.run()
    assert len(looked_up) <= 30 * (REFRESHES + 1) * PROBE_LOOKUPS
    assert len(looked_up) >= 30 * REFRESHES


def test_a_deadline_that_passes_in_the_queue_ends_the_request() -> None:
    clock = Clock()
    bench = Bench(sequences=1, clock=clock)
    bench.add("a", [0])
    bench.add("b", [1], deadline=2.5)
    bench.run()
    clock.wait(2.4)
    assert bench.scheduler.expire() == []
    clock.wait(0.1)
    (output,) = bench.scheduler.expire()
    assert (output.request_id, output.finish_reason, output.token_ids) == ("b", "deadline", [])
    assert output.error == "the deadline of 2.5 s passed before the first token, while it waited in the queue"
    assert (len(bench.scheduler), bench.scheduler.stats().expired) == (1, 1)
    assert bench.scheduler.expire() == []


def test_a_deadline_that_passes_amid_the_prompt_gives_everything_back() -> None:
    clock = Clock()
    bench = Bench(clock=clock)
    bench.add("a", [0] * 40, deadline=1)
    bench.run()
    under_way = bench.plan()
    clock.wait(1)
    (output,) = bench.scheduler.expire()
    assert "while its prompt was computed" in str(output.error)
    assert bench.scheduler.commit(under_way, bench.runner.run(under_way.plan)) == []
    assert (bench.scheduler.stats().blocks_used, len(bench.scheduler)) == (0, 0)


def test_an_answer_that_has_begun_goes_on_past_its_deadline() -> None:
    clock = Clock()
    bench = Bench(clock=clock)
    bench.add("a", [0], max_tokens=3, deadline=1)
    bench.run()
    clock.wait(100)
    assert bench.scheduler.expire() == []
    bench.run()
    bench.run()
    assert len(bench.scheduler) == 0


def test_a_deadline_counts_from_the_arrival() -> None:
    clock = Clock()
    bench = Bench(clock=clock)
    arrived = request("a", [0], deadline=3)
    bench.scheduler.add(with_context(arrived, arrived_ns=clock.now_ns - 2 * SECOND_NS))
    clock.wait(1)
    assert len(bench.scheduler.expire()) == 1


def test_deadlines_that_were_met_are_forgotten() -> None:
    clock = Clock()
    bench = Bench(clock=clock)
    for i in range(500):
        bench.add(f"r{i}", [1], max_tokens=1, deadline=3600)
        bench.run()
    assert len(bench.scheduler._deadlines._heap) <= 2 * 64


def test_aborted_requests_do_not_pile_up_in_the_queue() -> None:
    bench = Bench(sequences=1)
    bench.add("runs", [0], max_tokens=200)
    for i in range(1000):
        bench.add(f"r{i}", [1])
        bench.scheduler.abort([f"r{i}"])
    bench.run()
    assert len(bench.scheduler._admission.waiting._heap) <= 2 * 64
