"""State snapshots at block boundaries: resuming sequences, and tokens that are computed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from builders import drain, make_core, request, tokens_of
from simulated import POISON, VOCAB, SimulatedRunner, oracle

from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.kv.cache_groups import NOTHING_READ, ONE_FULL, Full, Rule, SlidingWindow
from plimsoll_runtime.engine.protocol.plan import StepPlan, StepResult

BLOCK = 16
KINDS: list[Sequence[Rule]] = [ONE_FULL, NOTHING_READ, (Full(), SlidingWindow(40))]


def recurrent(*, snapshots: int = 16, **options: Any) -> tuple[EngineCore, SimulatedRunner]:
    defaults = {"num_blocks": 300, "max_model_len": 1000, "max_batch_tokens": 512, "max_sequences": 8}
    return make_core(block_size=BLOCK, snapshots=snapshots, **(defaults | options))


def prompt_of(length: int, first: int = 0) -> list[int]:
    return [(first + 7 * i + i // 11) % (VOCAB - 1) for i in range(length)]


def ask(core: EngineCore, prompts: Sequence[Sequence[int]], **params: Any) -> list[int]:
    """Run all requests together, and check each output against the oracle; return the cached tokens of each."""
    requests = [request(f"r{number}", prompt, **params) for number, prompt in enumerate(prompts)]
    for each in requests:
        core.add(each)
    told = drain(core)
    for each in requests:
        alone = oracle(each, core.info.max_model_len, core.info.groups, recurrent=True)
        assert tokens_of(told[each.request_id]) == alone.token_ids
    return [sum(output.cached_tokens for output in told[each.request_id]) for each in requests]


@pytest.mark.parametrize("groups", KINDS)
def test_a_prompt_that_is_asked_again_goes_on_from_its_last_border(groups: Sequence[Rule]) -> None:
    core, runner = recurrent(groups=groups)
    prompt = prompt_of(300)
    assert ask(core, [prompt], max_tokens=2) == [0]
    before = runner.computed_tokens
    assert ask(core, [prompt], max_tokens=2) == [288]
    assert runner.computed_tokens - before == 12 + 1
    assert ask(core, [[*prompt, 3]], max_tokens=2) == [288]


@pytest.mark.parametrize("groups", KINDS)
def test_what_two_had_in_common_the_third_finds(groups: Sequence[Rule]) -> None:
    core, runner = recurrent(groups=groups)
    shared = prompt_of(200)
    assert ask(core, [[*shared, *prompt_of(40, first)] for first in (1, 2)], max_tokens=2) == [0, 0]
    before = runner.computed_tokens
    assert ask(core, [[*shared, *prompt_of(40, 3)]], max_tokens=2) == [192]
    assert runner.computed_tokens - before == 48 + 1


@pytest.mark.parametrize("groups", KINDS)
def test_of_many_at_once_two_compute_what_they_share(groups: Sequence[Rule]) -> None:
    core, runner = recurrent(groups=groups)
    shared = prompt_of(200)
    found = ask(core, [[*shared, *prompt_of(20, first)] for first in range(8)], max_tokens=1)
    assert found == [0, 0, *[192] * 6]
    assert runner.computed_tokens == 8 * 220 - 6 * 192


def test_of_equal_prompts_one_is_computed() -> None:
    core, _ = recurrent()
    assert ask(core, [prompt_of(300)] * 6, max_tokens=1) == [0, *[288] * 5]
    assert ask(core, [prompt_of(150, 5)] * 6, max_tokens=1) == [0, 0, *[144] * 4], (
        "too short to be cut without another sequence"
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_the_next_turn_goes_on_from_the_answer(overlap: bool) -> None:
    """It resumes from its last own snapshot, which is at least 64 tokens after the one before it."""
    core, _ = recurrent(overlap=overlap)
    prompt = prompt_of(100)
    core.add(request("first", prompt, max_tokens=100))
    answer = tokens_of(drain(core)["first"])
    assert ask(core, [[*prompt, *answer, *prompt_of(9, 4)]]) == [176]


class Watched:
    """Records the plans of a runner."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.plans: list[StepPlan] = []

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        result: StepResult = self._runner.run(plan)
        return result


def test_chunks_end_where_snapshots_are_taken() -> None:
    """A long prompt keeps a snapshot for itself at the end of each chunk, and one for others at its end."""
    watched: list[Watched] = []

    def watch(runner: Any) -> Any:
        watched.append(Watched(runner))
        return watched[0]

    core, _ = recurrent(wrap=watch, max_batch_tokens=150)
    ask(core, [prompt_of(350)], max_tokens=1)
    plans = [plan for plan in watched[0].plans if plan.sequences]
    assert [plan.num_tokens for plan in plans] == [144, 144, 48, 14]
    [own], [same], [other], rest = ([row for _, row in plan.snapshots] for plan in plans)
    assert own == same != other
    assert not rest


def test_a_sequence_that_gave_way_goes_on_from_its_own_snapshot() -> None:
    core, runner = recurrent(policy="priority", max_sequences=1)
    slow, urgent = request("slow", prompt_of(100), max_tokens=120, priority=3), request("urgent", [9] * 5, max_tokens=2)
    core.add(slow)
    tokens = [token for _ in range(90) for output in core.step().outputs for token in output.token_ids]
    core.add(urgent)
    told = drain(core)
    tokens += tokens_of(told["slow"])
    assert core.stats.preemptions == 1
    assert tokens == oracle(slow, core.info.max_model_len, recurrent=True).token_ids
    assert runner.computed_tokens == (100 + 119) + (5 + 1) + (100 + 89 - 176), "its state after 176 tokens is lost"


@pytest.mark.parametrize("groups", KINDS)
def test_with_few_blocks_whoever_gives_way_says_what_it_would_have_said(groups: Sequence[Rule]) -> None:
    core, _ = recurrent(groups=groups, num_blocks=66, max_model_len=400, max_batch_tokens=64, snapshots=3)
    ask(core, [prompt_of(60 + 7 * i, i % 3) for i in range(12)], max_tokens=150)


def test_the_oldest_goes_first_and_what_is_asked_for_stays() -> None:
    core, _ = recurrent(snapshots=4)
    prompts = [prompt_of(270, first) for first in range(6)]
    for prompt in prompts[:4]:
        ask(core, [prompt], max_tokens=1)
    assert ask(core, [prompts[0]], max_tokens=1) == [256]
    ask(core, [prompts[4]], max_tokens=1)
    assert ask(core, [prompts[0]], max_tokens=1) == [256]
    assert ask(core, [prompts[1]], max_tokens=1) == [0]


def test_without_rows_nothing_is_found() -> None:
    core, _ = recurrent(snapshots=0)
    assert ask(core, [prompt_of(150)] * 3, max_tokens=2) == [0, 0, 0]
    assert ask(core, [prompt_of(150)], max_tokens=2) == [0]


@pytest.mark.parametrize(("length", "steps"), [(60, [1, 1, 1]), (200, [1, 2, 1]), (300, [2, 1, 1])])
def test_what_is_cut(length: int, steps: list[int]) -> None:
    """Cut are prompts that share a prefix and long ones, but not short ones or short rests after a snapshot."""
    core, _ = recurrent()
    for expected in steps:
        before = core.stats.steps
        ask(core, [prompt_of(length)], max_tokens=1)
        assert core.stats.steps == before + expected


@pytest.mark.parametrize("budget", [512, 100])
def test_a_broken_sequence_leaves_no_snapshot(budget: int) -> None:
    """Neither one for others nor, between its chunks, one of its own."""
    core, _ = recurrent(max_batch_tokens=budget)
    broken = request("broken", prompt_of(300), stop_token_ids=(POISON,))
    core.add(broken)
    assert drain(core)["broken"][-1].finish_reason == "error"
    assert ask(core, [prompt_of(300)]) == [0]


def test_forgotten_prefixes_are_not_found() -> None:
    core, _ = recurrent()
    ask(core, [prompt_of(300)])
    core.reset_prefix_cache()
    assert ask(core, [prompt_of(300)]) == [0]


def test_tenants_find_nothing_of_each_other() -> None:
    core, _ = recurrent()
    ask(core, [prompt_of(300)], salt="one")
    assert ask(core, [prompt_of(300)], salt="other") == [0]
    assert ask(core, [prompt_of(300)], salt="one") == [288]
