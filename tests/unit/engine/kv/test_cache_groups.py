"""Cache groups that release blocks, next to groups that keep all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from builders import drain, make_core, request, tokens_of
from hypothesis import given
from hypothesis import strategies as st
from simulated import VOCAB, SimulatedRunner, oracle

from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.kv.cache_groups import (
    LEAST_CHUNK,
    Chunked,
    Full,
    Rule,
    SlidingWindow,
    first_block,
    longest_within,
    peak_blocks,
    sequence_blocks,
)
from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.errors import UsageError

MIXED: tuple[Rule, ...] = (Full(), SlidingWindow(8), SlidingWindow(8))


def grouped(groups: Sequence[Rule] = MIXED, **options: Any) -> tuple[EngineCore, SimulatedRunner]:
    return make_core(groups=groups, **({"max_model_len": 200, "num_blocks": 100} | options))


def prompt_of(length: int, first: int = 0) -> list[int]:
    return [(first + 7 * i) % (VOCAB - 1) for i in range(length)]


def answers(core: EngineCore, prompts: Sequence[Sequence[int]], groups: Sequence[Rule] = MIXED) -> None:
    """Check that the output of every prompt equals the oracle's."""
    for number, prompt in enumerate(prompts):
        core.add(request(f"r{number}", prompt))
    told = drain(core)
    for number, prompt in enumerate(prompts):
        assert tokens_of(told[f"r{number}"]) == oracle(request("r", prompt), 200, groups).token_ids


@given(
    window=st.integers(1, 40),
    tokens=st.integers(1, 120),
    size=st.sampled_from([1, 2, 4, 16]),
    chunk=st.integers(1, 64),
    begun=st.integers(0, 119),
)
def test_the_peak_is_what_a_sequence_holds(window: int, tokens: int, size: int, chunk: int, begun: int) -> None:
    """Whatever the chunks are, of up to LEAST_CHUNK blocks each, a sequence needs at most the peak."""
    rule, start = SlidingWindow(window), min(begun, tokens - 1)
    chunk, peak, held = min(chunk, LEAST_CHUNK * size), peak_blocks(SlidingWindow(window), start, tokens, size), 0
    computed = start
    while computed < tokens:
        end = min(computed + chunk, tokens)
        held = max(held, -(-end // size) - first_block(rule, computed, size))
        computed = end
    assert held <= peak
    assert peak <= -(-tokens // size)


@given(
    groups=st.lists(st.builds(Full) | st.builds(SlidingWindow, st.integers(1, 30)), min_size=1, max_size=4),
    blocks=st.integers(1, 60),
    limit=st.integers(1, 100),
)
def test_the_longest_sequence_of_a_cache(groups: list[Rule], blocks: int, limit: int) -> None:
    longest = longest_within(groups, blocks, 4, limit)
    assert longest == max((n for n in range(limit + 1) if sequence_blocks(groups, n, 4) <= blocks), default=0)


def test_what_a_query_sees() -> None:
    assert [SlidingWindow(4).oldest(position) for position in (0, 3, 4, 10)] == [0, 0, 1, 7]
    assert [Chunked(8).oldest(position) for position in (0, 7, 8, 20)] == [0, 0, 8, 16]
    assert Full().oldest(99) == 0


def test_the_first_token_behind_a_prompt_gives_its_chunk_back() -> None:
    core, _ = grouped(max_batch_tokens=256, num_blocks=160)
    core.add(request("a", prompt_of(190)))
    core.step()
    assert core.stats.blocks_used == 3 * 48
    core.step()
    assert core.stats.blocks_used == 48 + 2 * 3
    drain(core)


def test_a_long_answer_holds_its_window() -> None:
    core, runner = grouped()
    core.add(request("a", prompt_of(4), max_tokens=150))
    for _ in range(140):
        core.step()
    [sequence] = core._scheduler._running.sequences
    assert [len(table.blocks) for table in sequence.kv.tables] == [36, 3, 3]
    assert core.stats.blocks_used == 42
    assert (
        tokens_of(drain(core)["a"])[-1] == oracle(request("a", prompt_of(4), max_tokens=150), 200, MIXED).token_ids[-1]
    )
    assert runner.most_held == 39 + 3 + 3


def test_a_long_prompt_holds_its_window_and_a_chunk() -> None:
    core, runner = grouped(max_batch_tokens=12)
    answers(core, [prompt_of(190)])
    # 7 tokens that are still attended to and a chunk of 12, starting anywhere in a block
    assert runner.most_held <= 50 + 2 * 6


def test_more_sequences_run_where_blocks_come_back() -> None:
    def most_running(groups: Sequence[Rule]) -> int:
        core, _ = grouped(groups, num_blocks=3 * 51, max_sequences=32)
        for number in range(12):
            core.add(request(f"r{number}", prompt_of(170, number), max_tokens=20))
        most = 0
        while core.has_work:
            core.step()
            most = max(most, core.stats.running)
        return most

    assert most_running([Full(), Full(), Full()]) == 1
    assert most_running(MIXED) == 2


def test_a_prefix_is_found_whose_first_blocks_a_window_has_given_back() -> None:
    core, runner = grouped()
    prompt = prompt_of(60)
    answers(core, [prompt])
    before = runner.computed_tokens
    answers(core, [[*prompt, 5]])
    assert runner.computed_tokens - before < 12


def test_a_prefix_ends_where_all_groups_have_what_is_read() -> None:
    """The window's blocks of the last tokens are reused first, so the prefix hit ends earlier."""
    core, _ = grouped()
    prompt = prompt_of(60)
    answers(core, [prompt])
    kv = core._scheduler._kv
    assert kv._cache is not None
    core.add(request("again", [*prompt, 5]))
    sequence = core._scheduler._sequences["again"]
    gone = kv.pool.find(kv._cache.name(sequence, 1, 13))
    assert gone is not None
    kv.pool.forget(gone)
    hit = kv._match(sequence)
    assert hit.tokens == 13 * 4
    assert [run.first for run in hit.runs] == [0, 11, 11]
    assert tokens_of(drain(core)["again"]) == oracle(request("r", [*prompt, 5]), 200, MIXED).token_ids


def test_groups_find_no_blocks_of_each_other() -> None:
    core, _ = grouped()
    answers(core, [prompt_of(40)])
    kv = core._scheduler._kv
    core.add(request("again", prompt_of(40)))
    sequence = core._scheduler._sequences["again"]
    assert kv._cache is not None
    found = [kv.pool.find(kv._cache.name(sequence, group, 9)) for group in range(3)]
    assert len(set(found)) == 3
    drain(core)


def test_a_model_of_windows_alone_finds_a_prefix_without_its_beginning() -> None:
    core, runner = grouped([SlidingWindow(8)], num_blocks=12, prefix_caching=True)
    prompt = prompt_of(100)
    answers(core, [prompt], [SlidingWindow(8)])
    before = runner.computed_tokens
    answers(core, [[*prompt, 3]], [SlidingWindow(8)])
    assert runner.computed_tokens - before < 20, "only tokens after the prefix are computed"


def test_a_broken_sequence_leaves_nothing_that_can_be_found() -> None:
    core, _ = grouped()
    core.add(request("broken", prompt_of(60), stop_token_ids=(VOCAB - 1,)))
    told = drain(core)
    assert told["broken"][-1].finish_reason == "error"
    assert core.stats.blocks_cached == 0


@pytest.mark.parametrize(("groups", "holds"), [((Full(),), 396), ((Full(), Full()), 196), ((SlidingWindow(8),), 500)])
def test_the_longest_sequence_has_to_fit(groups: tuple[Rule, ...], holds: int) -> None:
    assert Limits(100, 4, min(holds, 500), 16, 4, groups=groups).max_len == min(holds, 500)
    if holds < 500:
        with pytest.raises(UsageError, match=f"the maximum length is 500 tokens, but the KV cache holds only {holds}"):
            Limits(100, 4, 500, 16, 4, groups=groups)
