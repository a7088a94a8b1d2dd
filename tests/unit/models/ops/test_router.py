"""Routers against rules written out token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from plimsoll_runtime.models.ops.router import by_sparse_mixer, by_top_k
from plimsoll_runtime.models.spec.feed_forward import SparseMixer, TopK

EXPERTS = 8


def logits_of(seed: int, rows: int = 5, experts: int = EXPERTS) -> Tensor:
    return torch.randn(rows, experts, generator=torch.Generator().manual_seed(seed))


def softmax(values: Sequence[float]) -> list[float]:
    powers = [math.exp(v) for v in values]
    return [p / sum(powers) for p in powers]


def chosen_by_hand(routing: TopK, logits: Sequence[float], count: int, bias: Sequence[float]) -> dict[int, float]:
    """Return the weight of each chosen expert."""
    scores = softmax(logits) if routing.scores == "softmax" else [1 / (1 + math.exp(-v)) for v in logits]
    ranked = [s + b for s, b in zip(scores, bias, strict=True)]
    size = len(logits) // routing.groups
    groups = [range(g * size, (g + 1) * size) for g in range(routing.groups)]
    groups.sort(key=lambda group: -sum(sorted((ranked[i] for i in group), reverse=True)[: routing.best]))
    allowed = [i for group in groups[: routing.open_groups] for i in group]
    experts = sorted(allowed, key=lambda i: -ranked[i])[:count]
    total = max(sum(scores[i] for i in experts), routing.least) if routing.renormalised else 1.0
    return {i: scores[i] / total * routing.scale for i in experts}


def by_expert(weights: Tensor, numbers: Tensor) -> list[dict[int, float]]:
    rows = zip(numbers.tolist(), weights.tolist(), strict=True)
    return [dict(zip(experts, row, strict=True)) for experts, row in rows]


@given(
    seed=st.integers(0, 2**31),
    scores=st.sampled_from(["softmax", "sigmoid"]),
    renormalised=st.booleans(),
    corrected=st.booleans(),
    groups=st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 3), (2, 2)]),
    best=st.integers(1, 2),
    chosen=st.integers(1, 4),
    scale=st.sampled_from([1.0, 2.5]),
)
def test_top_k_by_hand(
    seed: int,
    scores: str,
    renormalised: bool,
    corrected: bool,
    groups: tuple[int, int],
    best: int,
    chosen: int,
    scale: float,
) -> None:
    routing = TopK(scores, renormalised, corrected, *groups, best=best, least=1e-20, scale=scale)  # type: ignore[arg-type]
    logits = logits_of(seed)
    bias = logits_of(seed + 1, rows=1)[0] if corrected else None
    found = by_expert(*by_top_k(routing, logits, chosen, bias))
    unbiased = [0.0] * EXPERTS
    for row, ours in zip(logits.tolist(), found, strict=True):
        expected = chosen_by_hand(routing, row, chosen, unbiased if bias is None else bias.tolist())
        assert ours == pytest.approx(expected, rel=1e-4)


def test_softmax_over_the_chosen_is_the_same_as_renormalised() -> None:
    """Granite uses the first form, Mixtral the second."""
    logits = logits_of(3)
    weights, numbers = by_top_k(TopK(), logits, 3, None)
    torch.testing.assert_close(weights, logits.gather(1, numbers).softmax(dim=-1))


def test_a_least_sum_bounds_what_weights_are_divided_by() -> None:
    weights, _ = by_top_k(TopK("sigmoid", least=4.0), torch.zeros(1, EXPERTS), 2, None)
    assert weights.tolist() == [[0.125, 0.125]]


def test_a_correction_chooses_and_does_not_weigh() -> None:
    bias = torch.tensor([0.0, 5.0, 0.0, 4.0])
    weights, numbers = by_top_k(TopK("sigmoid", False), torch.zeros(1, 4), 2, bias)
    assert sorted(numbers[0].tolist()) == [1, 3]
    assert weights.tolist() == [[0.5, 0.5]]


@given(seed=st.integers(0, 2**31), jitter=st.sampled_from([0.0, 0.01, 0.3, 1.0]))
def test_sparse_mixer_equals_transformers(seed: int, jitter: float) -> None:
    from transformers.models.phimoe.modeling_phimoe import sparsemixer

    logits = logits_of(seed, experts=16)
    weights, numbers = by_sparse_mixer(SparseMixer(jitter), logits, 2)
    theirs, selected = sparsemixer(logits, jitter_eps=jitter, training=False)  # type: ignore[no-untyped-call]
    assert torch.equal(numbers, selected)
    torch.testing.assert_close(weights, theirs)
