"""Sampled tokens are those of the definition, for any parameters, vocabulary and batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_support.definition import Wish, allowed, distribution, row_params
from sampling_support.logits import SHAPES, shaped
from sampling_support.masking import by_hand, random_masks
from torch import Tensor

from plimsoll_kernels.cpu.threads import share, thread_count
from plimsoll_kernels.sampling.op import sample as checked_sample
from plimsoll_kernels.sampling.params import RowParams

Sample = Callable[..., tuple[Tensor, Tensor]]
DRAWS = 20_000
WISHES = [
    Wish(),
    Wish(0.7, top_k=5),
    Wish(1.3, top_p=0.8),
    Wish(1.0, top_k=9, top_p=0.6),
    Wish(2.0, min_p=0.2),
    Wish(1.5, top_k=12, top_p=0.9, min_p=0.05),
]


def evenly(count: int) -> Tensor:
    """Return evenly spaced uniform numbers: draws follow a distribution to within one in `count`."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


SHAPE = st.sampled_from(SHAPES)
WISH = st.builds(
    Wish,
    temperature=st.sampled_from([1e-4, 0.3, 1.0, 1.7, 100.0]),
    top_k=st.one_of(st.just(0), st.integers(1, 80), st.integers(1, 5000)),
    top_p=st.one_of(st.just(1.0), st.sampled_from([0.001, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 2**-24])),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0, width=32)),
)
UNIFORM = st.one_of(st.sampled_from([0.0, 1.0 - 2.0**-53]), st.floats(0.0, 1.0, exclude_max=True))


@pytest.mark.matrix(2)
@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_frequencies_match_the_definition(sample: Sample, wish: Wish) -> None:
    logits = torch.randn(300, generator=torch.Generator().manual_seed(3)) * 2
    uniform = torch.rand(DRAWS, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    _, tokens = sample(logits.expand(DRAWS, -1), row_params(*[wish] * DRAWS), uniform)
    expected = distribution(logits, wish)
    observed = np.bincount(tokens.numpy(), minlength=300) / DRAWS
    assert observed[expected == 0].sum() == 0
    often = expected * DRAWS > 5
    chi_square = DRAWS * ((observed - expected)[often] ** 2 / expected[often]).sum()
    degrees = int(often.sum())
    assert chi_square < degrees + 4 * (2 * degrees) ** 0.5 + 4


@pytest.mark.matrix(6)
@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_even_uniforms_give_the_distribution_itself(sample: Sample, wish: Wish) -> None:
    logits = torch.randn(300, generator=torch.Generator().manual_seed(3)) * 2
    _, tokens = sample(logits.expand(DRAWS, -1), row_params(*[wish] * DRAWS), evenly(DRAWS))
    observed = np.bincount(tokens.numpy(), minlength=300) / DRAWS
    assert np.abs(observed - distribution(logits, wish)).max() <= 1.5 / DRAWS


@pytest.mark.matrix(2)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), vocab=st.integers(1, 3000), shape=SHAPE, wish=WISH, uniform=UNIFORM)
def test_any_row(sample: Sample, seed: int, vocab: int, shape: str, wish: Wish, uniform: float) -> None:
    logits = shaped(seed, vocab, shape)
    best, tokens = sample(logits[None], row_params(wish), torch.tensor([uniform], dtype=torch.float64))
    assert best.item() == logits.max().item()
    assert tokens.item() in allowed(logits, wish, uniform)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("vocab", [1, 2, 63, 64, 65, 50_257, 262_144])
def test_vocabularies(sample: Sample, vocab: int) -> None:
    cases = [
        (shape, wish, uniform)
        for i, shape in enumerate(["flat", "equal", "steps", "masked", "peaked"])
        for wish, uniform in [
            (Wish(0.9), 0.1 + 0.15 * i),
            (Wish(1.1, top_k=40, top_p=0.95), 0.3),
            (Wish(1.0, top_p=0.9, min_p=0.001), 0.77),
            (Wish(1.0, top_k=max(1, vocab // 3), top_p=0.5), 0.97),
        ]
    ]
    logits = torch.stack([shaped(i, vocab, shape) for i, (shape, _, _) in enumerate(cases)])
    uniform = torch.tensor([u for _, _, u in cases], dtype=torch.float64)
    _, tokens = sample(logits, row_params(*(w for _, w, _ in cases)), uniform)
    for row, (token, (shape, wish, u)) in enumerate(zip(tokens.tolist(), cases, strict=True)):
        assert token in allowed(logits[row], wish, u), (shape, wish)


@pytest.mark.matrix(2)
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), vocab=st.integers(1, 400), shape=SHAPE, temperature=st.floats(1e-4, 100))
def test_top_k_of_one_is_the_largest(sample: Sample, seed: int, vocab: int, shape: str, temperature: float) -> None:
    logits = shaped(seed, vocab, shape)
    wishes = [Wish(0.0), Wish(temperature, top_k=1), Wish(temperature, top_p=1e-7), Wish(1e-39)]
    _, tokens = sample(logits.expand(4, -1), row_params(*wishes), torch.full((4,), 0.999, dtype=torch.float64))
    assert tokens.tolist() == [int(logits.argmax())] * 4


def test_of_equal_logits_the_first_stay(sample: Sample) -> None:
    logits = torch.full((1000,), -40.0)
    logits[100:900:8] = 2.0
    wishes = [Wish(top_k=10), Wish(top_p=0.095), Wish(top_k=20, top_p=0.5)]
    for wish in wishes:
        params = row_params(*[wish] * 500)
        _, tokens = sample(logits.expand(500, -1), params, evenly(500))
        assert set(tokens.tolist()) == set(range(100, 100 + 8 * 10, 8)), wish


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
@pytest.mark.parametrize("wish", [Wish(), Wish(top_k=100), Wish(top_p=0.9999), Wish(min_p=0.1)], ids=str)
def test_extreme_uniforms_never_pick_a_token_of_weight_zero(sample: Sample, wish: Wish, uniform: float) -> None:
    logits = torch.full((1, 1500), -math.inf)
    logits[0, [3, 700]] = 0.0
    _, tokens = sample(logits, row_params(wish), torch.tensor([uniform], dtype=torch.float64))
    assert tokens.item() == (3 if uniform == 0.0 else 700)


def mixed_batch(rows: int, vocab: int) -> tuple[Tensor, RowParams, Tensor]:
    shapes = ["flat", "steps", "masked", "peaked"]
    logits = torch.stack([shaped(i, vocab, shapes[i % 4]) for i in range(rows)])
    wishes = [Wish(0.8 + i / 50, (0, 40, 900)[i % 3], (1.0, 0.9)[i % 2], (0.0, 0.02)[i // 2 % 2]) for i in range(rows)]
    return logits, row_params(*wishes), torch.rand(rows, dtype=torch.float64)


@pytest.mark.matrix(7)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_is_the_same_in_every_batch(sample: Sample, threads: int) -> None:
    logits, params, uniform = mixed_batch(24, 3001)
    whole = sample(logits, params, uniform)[1].tolist()
    before = thread_count()
    share(threads)
    try:
        alone = []
        for i in range(24):
            chosen = torch.tensor([i])
            alone.append(sample(logits[chosen], params.rows(chosen), uniform[chosen])[1].item())
        assert alone == whole
        part = torch.arange(5, 20)
        assert sample(logits[part], params.rows(part), uniform[part])[1].tolist() == whole[5:20]
    finally:
        share(before)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_told_and_disturbs_nobody(sample: Sample, bad: float) -> None:
    logits, params, uniform = mixed_batch(12, 777)
    expected = sample(logits, params, uniform)
    broken = logits.clone()
    broken[::2, 776] = bad
    broken[0, 5] = -math.inf
    broken[2] = -math.inf
    best, tokens = sample(broken, params, uniform)
    assert not best[::2].isfinite().any()
    assert best[0].isnan() == math.isnan(bad)
    assert best[2] == -math.inf
    assert torch.equal(best[1::2], expected[0][1::2])
    assert torch.equal(tokens[1::2], expected[1][1::2])
    assert ((tokens >= 0) & (tokens < 777)).all()


def test_the_largest_as_torch_finds_it(sample: Sample) -> None:
    rows = torch.tensor([[0.0, -0.0, -1.0], [-1.0, 3.0, 3.0], [-math.inf, 2.0, math.inf], [1.0, math.nan, math.inf]])
    best, tokens = sample(rows, row_params(*[Wish(0.0)] * 4), torch.zeros(4, dtype=torch.float64))
    assert tokens.tolist() == rows.argmax(-1).tolist()
    assert best.tolist()[:3] == [0.0, 3.0, math.inf]


def test_rows_apart_from_each_other(sample: Sample) -> None:
    logits, params, uniform = mixed_batch(6, 500)
    wide = torch.full((6, 700), math.nan)
    wide[:, 100:600] = logits
    assert torch.equal(sample(wide[:, 100:600], params, uniform)[1], sample(logits, params, uniform)[1])


@pytest.mark.matrix(9)
@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 500, 4099])
def test_what_a_mask_leaves_out_counts_for_nothing(sample: Sample, vocab: int) -> None:
    for seed in range(5):
        logits, params, uniform = mixed_batch(12, vocab)
        masks, may = random_masks(seed, 12, vocab)
        expected = sample(by_hand(logits, may), params, uniform)
        best, tokens = sample(logits.clone(), params, uniform, masks)
        assert torch.equal(best, expected[0])
        assert torch.equal(tokens, expected[1])
        assert (may[torch.arange(12), tokens] | ~best.isfinite()).all()


def test_a_nan_is_seen_behind_a_mask(sample: Sample) -> None:
    logits, params, uniform = mixed_batch(4, 100)
    masks, may = random_masks(3, 4, 100)
    row = int((masks.masked >= 0).nonzero()[0])
    logits[row, int((~may[row]).nonzero()[0])] = math.nan
    assert sample(logits, params, uniform, masks)[0].isnan().tolist() == [i == row for i in range(4)]


def test_masks_that_do_not_fit_are_refused() -> None:
    logits, params, uniform = mixed_batch(4, 100)
    masks, _ = random_masks(3, 4, 100)
    for wrong, told in (
        (replace(masks, masked=masks.masked[:3]), r"masks must be \[4\] and \[M, 4\], got \[3\]"),
        (replace(masks, bits=masks.bits[:, :3].contiguous()), r"got \[4\] and \[2, 3\]"),
        (replace(masks, bits=masks.bits.long()), "contiguous int32 on cpu, got contiguous torch.int64"),
        (replace(masks, bits=masks.bits.T.contiguous().T), "contiguous int32"),
    ):
        with pytest.raises(ValueError, match=told):
            checked_sample(logits, params, uniform, wrong)


def test_no_rows() -> None:
    best, tokens = checked_sample(torch.zeros(0, 5), row_params(), torch.zeros(0, dtype=torch.float64))
    assert best.shape == tokens.shape == (0,)


def test_refusals() -> None:
    logits, params, uniform = mixed_batch(3, 10)
    with pytest.raises(ValueError, match=r"float32 \[R, V\] with contiguous rows, got torch.float64"):
        checked_sample(logits.double(), params, uniform)
    with pytest.raises(ValueError, match=r"contiguous rows"):
        checked_sample(logits.T.contiguous().T, params, uniform)
    with pytest.raises(ValueError, match="1 to 524288 tokens, got 0"):
        checked_sample(logits[:, :0], params, uniform)
    with pytest.raises(ValueError, match="2 rows of logits on cpu, but parameters of 3 on cpu"):
        checked_sample(logits[:2], params, uniform[:2])
    with pytest.raises(ValueError, match=r"uniform must be contiguous torch\.float64"):
        checked_sample(logits, params, uniform.float())
    with pytest.raises(ValueError, match=r"top_p must be contiguous torch\.float32"):
        replace(params, top_p=params.top_p.double())
    with pytest.raises(ValueError, match=r"min_p must be \[R\] like temperature"):
        replace(params, min_p=params.min_p[:1])
