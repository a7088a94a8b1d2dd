"""Rows of logits are divided so that the device is full and every tile is read once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_kernels.sampling.division import MOST_LOOPS, TILES_AT_ONCE, Division


@given(rows=st.integers(1, 3000), tiles=st.integers(1, 4096), processors=st.integers(1, 200))
def test_all_tiles_and_no_idle_program(rows: int, tiles: int, processors: int) -> None:
    division = Division.of(rows, tiles, processors)
    taken = division.loops * TILES_AT_ONCE
    assert (division.splits - 1) * taken < tiles <= division.splits * taken
    assert 1 <= division.loops <= MOST_LOOPS


def test_one_row_is_spread_over_a_whole_device_and_many_are_not_split_finer_than_they_need() -> None:
    assert Division.of(1, 1188, 132) == Division(149, 1)
    assert Division.of(256, 1188, 132) == Division(19, 8)


@pytest.mark.parametrize("wrong", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_nothing_is_not_divided(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="each must be at least 1"):
        Division.of(*wrong)
