"""Ranks with parts of the logits choose the tokens that one rank with all logits samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from parallel_support.choosing import CountingCollectives, chosen, cut_at, draws, expected_tokens
from parallel_support.ranks import ThreadCollectives, on_ranks
from sampling_support.definition import Wish, row_params
from sampling_support.logits import SHAPES, shaped
from torch import Tensor

from plimsoll_kernels.cpu.library import library
from plimsoll_kernels.dispatch import Implementation
from plimsoll_kernels.sampling.op import sample
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.parallel.choice import Choice
from plimsoll_runtime.parallel.choice_rows import DrawnSlots
from plimsoll_runtime.parallel.choice_weights import _joined, _thirds

GROUP = 512
KERNELS = pytest.param("auto", marks=pytest.mark.skipif(library() is None, reason="the CPU kernels were not built"))
IMPLEMENTATIONS = [KERNELS, "reference"]
WISH = st.builds(
    Wish,
    temperature=st.sampled_from([0.0, 1e-4, 0.3, 0.8, 1.0, 1.7, 100.0]),
    top_k=st.one_of(st.just(0), st.integers(1, 80), st.integers(1, 700), st.integers(1, 4000)),
    top_p=st.one_of(st.just(1.0), st.sampled_from([0.001, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 2**-24])),
    min_p=st.one_of(st.just(0.0), st.sampled_from([0.0, 1e-5, 0.05]), st.floats(0.0, 1.0, width=32)),
)
UNIFORM = st.one_of(st.sampled_from([0.0, 1.0 - 2.0**-53]), st.floats(0.0, 1.0, exclude_max=True))
BROKEN = st.sampled_from([None, None, None, None, math.nan, math.inf, -math.inf])


@st.composite
def cuts(draw: st.DrawFn) -> list[int]:
    """Return the ends of two to four parts, all but the last at multiples of GROUP."""
    groups = draw(st.integers(2, 8))
    ends = draw(st.lists(st.integers(1, groups - 1), min_size=1, max_size=min(3, groups - 1), unique=True))
    last = GROUP * (groups - 1) + draw(st.integers(1, GROUP))
    return [*(GROUP * end for end in sorted(ends)), last]


@st.composite
def rows(draw: st.DrawFn, vocab: int) -> Tensor:
    """Return one to four rows of logits, some with a NaN, an infinity, or nothing but -infinity."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        row = shaped(draw(st.integers(0, 2**32)), vocab, draw(st.sampled_from(SHAPES)))
        broken = draw(BROKEN)
        if broken is not None:
            at = draw(st.integers(0, vocab - 1))
            row[at : vocab if broken == -math.inf and draw(st.booleans()) else at + 1] = broken
        found.append(row)
    return torch.stack(found)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@settings(max_examples=200, deadline=None)
@given(data=st.data(), ends=cuts())
def test_any_rows_parameters_and_cuts(implementation: Implementation, data: st.DataObject, ends: list[int]) -> None:
    logits = data.draw(rows(ends[-1]))
    wishes = [data.draw(WISH) for _ in logits]
    uniforms = torch.tensor([data.draw(UNIFORM) for _ in logits], dtype=torch.float64)
    found = chosen(logits, wishes, uniforms, cut_at(ends), implementation).tokens
    params = row_params(*wishes)
    below, expected, above = (
        expected_tokens(*sample(logits.clone(), params, uniforms * factor, implementation=implementation))
        for factor in (1.0 - ROUNDING, 1.0, 1.0 + ROUNDING)
    )
    for token, *allowed in zip(found, expected, below, above, strict=True):
        assert token in allowed


ROUNDING = 2.0**-48
"""Sums over parts differ from those of a whole row in the last bits of a double. So a uniform number that is this close
to the border between two tokens may draw either.
"""
ENDS = [1024, 1536, 2100]
VOCAB = ENDS[-1]
KINDS = [
    Wish(0.0),
    Wish(0.8),
    Wish(0.8, top_p=0.9),
    Wish(100.0, top_p=0.999),  # needs all logits
    Wish(1.0, top_k=50, top_p=0.9),
    Wish(1.3, top_k=1000),  # needs all logits
    Wish(1.0, min_p=0.1),
]


def some_logits(seed: int) -> Tensor:
    return torch.randn(len(KINDS), VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def shares(seed: int) -> Tensor:
    return torch.rand(len(KINDS), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_rows_need_all_logits_only_if_candidates_do_not_suffice() -> None:
    found = chosen(some_logits(1), KINDS, shares(2), cut_at(ENDS))
    assert found.left == [3, 5]


def test_greedy_rows_take_eight_bytes_of_each_rank() -> None:
    logits = torch.randn(64, VOCAB)
    found = chosen(logits, [Wish(0.0)] * 64, torch.zeros(64, dtype=torch.float64), cut_at([1024, VOCAB]))
    assert found.tokens == logits.argmax(dim=-1).tolist()
    assert found.sizes == [2 * 64 * 8]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_first_of_equal_logits_is_chosen(implementation: Implementation) -> None:
    logits = torch.zeros(2, VOCAB)
    logits[1, [1023, 1024, 2000]] = 1.0
    tokens = chosen(logits, [Wish(0.0)] * 2, shares(1)[:2], cut_at(ENDS), implementation).tokens
    assert tokens == [0, 1023]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_draws_from_all_parts_follow_the_weights(implementation: Implementation) -> None:
    """Evenly spaced uniform numbers reach tokens of each part, as often as one rank draws them."""
    count = 60
    logits = some_logits(3)[:1].expand(count, -1).contiguous() * 0.2
    uniforms = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    for wish in (Wish(), Wish(0.7, min_p=0.01), Wish(0.5, top_p=0.3), Wish(1.0, top_k=300)):
        wishes = [wish] * count
        expected = sample(logits.clone(), row_params(*wishes), uniforms, implementation=implementation)[1].tolist()
        tokens = chosen(logits, wishes, uniforms, cut_at(ENDS), implementation).tokens
        assert tokens == expected
        assert {sum(token >= end for end in ENDS) for token in tokens} == {0, 1, 2}


def test_doubles_are_exchanged_exactly() -> None:
    numbers = np.concatenate([np.random.default_rng(1).uniform(0, 1, 1000) ** 9 * 2.0**19, [0.0, 2e-22, 2.0**19]])
    assert np.array_equal(_joined(_thirds(numbers).astype(np.float32)), numbers)


class ShortRank:
    """Ranks that choose tokens for two steps. In the first one, rank `failed` lacks memory before its exchange number
    `at`, counted from 0.
    """

    def __init__(self, failed: int, at: int, special: Sequence[int] = ()) -> None:
        self.failed = failed
        self.at = at
        self.special = list(special)
        self.slots = DrawnSlots(cut_at(ENDS))
        for draw in draws(KINDS):
            self.slots.fill(draw)
        self.rows = self.slots.rows(tuple(range(len(KINDS)))).rows

    def __call__(self, group: ThreadCollectives, rank: int) -> tuple[str, list[int], int]:
        """Return how the first step ended, the tokens of the second, and the sums of both."""
        counting = CountingCollectives(group)
        choice = Choice(counting, cut_at(ENDS), rank)
        exchanges = iter(range(100))
        plain = choice._exchange.gathered

        def gathered(own: NDArray[np.float32]) -> NDArray[np.float32]:
            if next(exchanges) == self.at and rank == self.failed:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return plain(own)

        choice._exchange.gathered = gathered  # type: ignore[method-assign]
        try:
            self._step(choice, rank, 1)
            outcome = "done"
        except torch.OutOfMemoryError:
            choice.fail()
            outcome = "failed"
        except StepMemoryError as error:
            choice.fail()
            outcome = str(error)
        choice._exchange.gathered = plain  # type: ignore[method-assign]
        return outcome, self._step(choice, rank, 5), len(counting.sizes)

    def _step(self, choice: Choice, rank: int, seed: int) -> list[int]:
        first, end = cut_at(ENDS)[rank]
        own = some_logits(seed)[:, first:end].contiguous()
        choice.begin(self.rows, len(self.special), 2)
        tokens, left = choice.choose(own, shares(seed).numpy())
        whole = choice.gather(own, [*self.special, *left.tolist()])
        if whole is not None:
            tokens[left] = choice.sampled(whole[len(self.special) :], left, shares(seed).numpy())
        for _ in range(2):
            prompt = choice.gather(own, range(3), of_prompt=True)
            assert prompt is None or torch.equal(prompt, some_logits(seed)[:3])
        found: list[int] = tokens.tolist()
        return found


EXCHANGES = 6
"""Of a step: largest logits, weights, tokens, all logits, and those of two parts of prompts."""


@pytest.mark.parametrize("at", range(EXCHANGES + 1))
@pytest.mark.parametrize("failed", [0, 1, 2])
def test_a_rank_without_memory_breaks_off_the_choice_of_all(failed: int, at: int) -> None:
    expected = sample(some_logits(5), row_params(*KINDS), shares(5))[1].tolist()
    found = on_ranks(3, ShortRank(failed, at, special=[1]))
    for rank, (outcome, tokens, sums) in enumerate(found):
        others = f"rank {failed} has too little memory for this step"
        assert outcome == ("done" if at == EXCHANGES else "failed" if rank == failed else others)
        assert sums == found[0][2]
        if rank == 0:
            assert tokens == expected
