"""Triton's kernel chooses what the definition allows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling_support.definition import Wish, allowed, row_params
from sampling_support.logits import SHAPES, shaped
from sampling_support.masking import by_hand, random_masks

from plimsoll_kernels.sampling import kernel
from plimsoll_kernels.sampling.op import sample


def choose(logits: torch.Tensor, wishes: list[Wish], uniform: list[float], device: str) -> list[int]:
    params = row_params(*wishes, device=device)
    drawn = torch.tensor(uniform, dtype=torch.float64, device=device)
    best, tokens = sample(logits.to(device), params, drawn, implementation="triton")
    assert torch.equal(best.cpu(), logits.amax(-1))
    chosen: list[int] = tokens.tolist()
    return chosen


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.integers(1, 300),
    shape=st.sampled_from(SHAPES),
    top_k=st.sampled_from([0, 1, 7, 100, 299]),
    top_p=st.sampled_from([1.0, 0.001, 0.5, 0.95, 1 - 2**-24]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    uniform=st.floats(0.0, 1.0, exclude_max=True),
)
def test_any_row(
    triton_device: str,
    seed: int,
    vocab: int,
    shape: str,
    top_k: int,
    top_p: float,
    min_p: float,
    uniform: float,
) -> None:
    logits, wish = shaped(seed, vocab, shape), Wish(0.9, top_k, top_p, min_p)
    assert choose(logits[None], [wish], [uniform], triton_device)[0] in allowed(logits, wish, uniform)


def test_more_tokens_than_a_block_and_rows_apart(triton_device: str) -> None:
    vocab = kernel.BLOCK + 77
    wishes = [Wish(0.0), Wish(), Wish(0.8, 40, 0.95), Wish(1.0, 0, 0.9), Wish(1.3, 0, 1.0, 0.01), Wish(2.0, 4100, 0.99)]
    logits = torch.full((6, vocab + 30), math.nan)
    logits[:, 10 : 10 + vocab] = torch.stack([shaped(i, vocab, SHAPES[i % len(SHAPES)]) for i in range(6)])
    uniform = [0.5, 0.1, 0.99, 0.3, 0.7, 0.42]
    logits = logits[:, 10 : 10 + vocab]
    tokens = choose(logits, wishes, uniform, triton_device)
    assert tokens[0] == logits[0].argmax()
    for row, wish, u, token in zip(logits[1:], wishes[1:], uniform[1:], tokens[1:], strict=True):
        assert token in allowed(row, wish, u), wish


def test_of_equal_logits_the_first_stay(triton_device: str) -> None:
    logits = torch.full((1, 200), -40.0)
    logits[0, 50:150] = 2.0
    for wish in (Wish(top_k=10), Wish(top_p=0.095), Wish(top_k=20, top_p=0.5)):
        tokens = [choose(logits, [wish], [(i + 0.5) / 20], triton_device)[0] for i in range(20)]
        assert set(tokens) == set(range(50, 60)), wish


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_told_and_disturbs_nobody(triton_device: str, bad: float) -> None:
    logits = torch.stack([shaped(i, 90, "peaked") for i in range(3)]).to(triton_device)
    params = row_params(*[Wish(top_p=0.9)] * 3, device=triton_device)
    uniform = torch.full((3,), 0.5, dtype=torch.float64, device=triton_device)
    expected = sample(logits, params, uniform, implementation="triton")
    broken = logits.clone()
    broken[1, 80] = bad
    best, tokens = sample(broken, params, uniform, implementation="triton")
    assert not best[1].isfinite()
    assert best[1].isnan() == math.isnan(bad)
    assert torch.equal(best[[0, 2]], expected[0][[0, 2]])
    assert torch.equal(tokens[[0, 2]], expected[1][[0, 2]])


@pytest.mark.parametrize("vocab", [33, 500])
def test_what_a_mask_leaves_out_counts_for_nothing(triton_device: str, vocab: int) -> None:
    wishes = [Wish(0.0), Wish(), Wish(0.8, 40, 0.95), Wish(1.0, 0, 0.9), Wish(1.3, 0, 1.0, 0.01), Wish(2.0, 20, 0.99)]
    params = row_params(*wishes, device=triton_device)
    logits = torch.stack([shaped(i, vocab, SHAPES[i % len(SHAPES)]) for i in range(6)]).to(triton_device)
    uniform = torch.linspace(0.05, 0.95, 6, dtype=torch.float64, device=triton_device)
    masks, may = random_masks(vocab, 6, vocab, triton_device)
    expected = sample(by_hand(logits, may), params, uniform, implementation="triton")
    actual = sample(logits, params, uniform, masks, implementation="triton")
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])
