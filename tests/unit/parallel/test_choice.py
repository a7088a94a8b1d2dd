"""Ranks with parts of the logits choose the tokens that one rank with all logits samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_support.choosing import chosen, cut_at, expected_tokens
from sampling_support.definition import Wish, row_params
from sampling_support.logits import SHAPES, shaped
from torch import Tensor

from plimsoll_kernels.cpu.library import library
from plimsoll_kernels.dispatch import Implementation
from plimsoll_kernels.sampling.op import sample
from plimsoll_runtime.parallel.choice import _joined, _thirds

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
    expected = sample(logits.clone(), row_params(*wishes), uniforms, implementation=implementation)
    assert chosen(logits, wishes, uniforms, cut_at(ends), implementation).tokens == expected_tokens(*expected)
