"""Candidates and weights of a part of the vocabulary are those of sorted logits, in every implementation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support.instructions import SETS
from sampling_support.logits import SHAPES, shaped

from plimsoll_kernels.cpu.part_candidates import KernelCandidates
from plimsoll_kernels.sampling.part_candidates import Candidates, ReferenceCandidates

Make = Callable[..., Candidates]


@pytest.fixture(scope="session", params=["reference", *SETS], ids=str)
def make(request: pytest.FixtureRequest) -> Make:
    """The reference, and the kernels of each instruction set."""
    if request.param == "reference":
        return ReferenceCandidates
    return partial(KernelCandidates, request.param.kernels())


@pytest.mark.matrix(2)
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.integers(1, 2000),
    shape=st.sampled_from(SHAPES),
    count=st.integers(0, 600),
    temperature=st.sampled_from([0.3, 1.0, 5.0]),
    min_p=st.sampled_from([0.0, 0.01]),
    beyond=st.floats(0.0, 3.0),
    share=st.floats(0.0, 1.0, exclude_max=True),
)
def test_any_part(
    make: Make,
    seed: int,
    vocab: int,
    shape: str,
    count: int,
    temperature: float,
    min_p: float,
    beyond: float,
    share: float,
) -> None:
    """The second row has no candidates and no weight; another part has a logit that is larger by `beyond`."""
    count = min(count, vocab)
    row = shaped(seed, vocab, shape)
    found = make(torch.stack([row, row]), np.array([count, 0], dtype=np.int32))
    x = row.numpy()
    assert found.best.tolist() == [x.max(), x.max()]
    assert found.tokens.tolist() == [int(x.argmax())] * 2
    first = np.sort(np.argsort(-x, kind="stable")[:count])
    assert found.listed[0, :count].tolist() == first.tolist()
    assert found.values[0, :count].tolist() == x[first].tolist()

    largest = np.float32(x.max() + np.float32(beyond))
    bound = np.float32(np.median(x[first])) if count else np.float32(0.0)
    heat, least = np.array([temperature, 0.0], dtype=np.float32), np.full(2, min_p, dtype=np.float32)
    mass, above = found.weigh(heat, least, np.full(2, largest), np.full(2, bound))
    weights = np.exp((x.astype(np.float64) - largest) / np.float32(temperature))
    sure, maybe = (weights[weights >= min_p * slack].sum() for slack in (1 + 1e-5, 1 - 1e-5))
    assert sure * (1 - 1e-5) - 1e-15 <= mass[0] <= maybe * (1 + 1e-5) + 1e-15
    assert above[0] == pytest.approx(weights[first][x[first] > bound].sum(), rel=1e-5, abs=1e-12)

    target = share * mass[0]
    [token, _] = found.find(np.array([target, -1.0]))
    if mass[0] > 0.0:
        kept = np.where(weights >= min_p * (1 - 1e-5), weights, 0.0)
        ends = kept.cumsum()
        slack = 2e-5 * ends[-1]
        assert kept[token] > 0.0
        assert ends[token] >= target - slack
        assert ends[token] - kept[token] <= target + slack


def test_a_row_with_a_nan_has_no_candidates(make: Make) -> None:
    logits = torch.zeros(2, 700)
    logits[0, 600] = math.nan
    logits[1] = -math.inf
    found = make(logits, np.array([3, 3], dtype=np.int32))
    assert math.isnan(found.best[0])
    assert found.best[1] == -math.inf
    assert (found.values == -math.inf).all()
    assert found.listed[1].tolist() == [0, 1, 2]
