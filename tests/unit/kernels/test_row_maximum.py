"""The largest value of each row: what torch finds, NaN and equals included."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_kernels.row_maximum.op import row_maximum
from plimsoll_kernels.row_maximum.reference import row_maximum_reference

VALUES = st.sampled_from([-math.inf, -1.5, 0.0, 2.0, 2.5, math.inf, math.nan])


@settings(max_examples=200, deadline=None)
@given(
    rows=st.integers(1, 70).flatmap(
        lambda n: st.lists(st.lists(VALUES, min_size=n, max_size=n), min_size=1, max_size=4)
    )
)
def test_equals_the_reference(rows: list[list[float]]) -> None:
    tensor = torch.tensor(rows)
    values, indices = row_maximum(tensor)
    expected, expected_indices = row_maximum_reference(tensor)
    assert torch.equal(values.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
    assert torch.equal(indices, expected_indices)


def test_a_vocabulary() -> None:
    rows = torch.randn(9, 32_003, generator=torch.Generator().manual_seed(0))
    rows[3, 31_999] = rows[3, 5] = 50.0
    values, indices = row_maximum(rows)
    assert indices.tolist() == rows.argmax(-1).tolist()
    assert indices[3] == 5
    assert torch.equal(values, rows.amax(-1))


@pytest.mark.parametrize("shape", [(3, 0), (3,), (1, 2, 3)])
def test_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="rows of at least one value"):
        row_maximum(torch.zeros(shape))
