"""The division of a decode's context: enough programs for the device, none with too few tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_kernels.paged_attention.decode.splits import MAX_SPLITS, MIN_SPLIT_TOKENS, WAVES, decode_splits

COUNTS = st.integers(1, 10_000)


@given(programs=COUNTS, longest=st.integers(1, 10**6), processors=st.integers(1, 200))
def test_bounds(programs: int, longest: int, processors: int) -> None:
    splits = decode_splits(programs, longest, processors)
    assert splits & (splits - 1) == 0
    assert 1 <= splits <= MAX_SPLITS
    assert splits == 1 or longest / splits >= MIN_SPLIT_TOKENS
    assert splits == 1 or programs * splits <= WAVES * processors


@given(programs=COUNTS, longest=st.integers(1, 10**6), more=COUNTS)
def test_longer_contexts_are_never_split_less(programs: int, longest: int, more: int) -> None:
    assert decode_splits(programs, longest + more, 132) >= decode_splits(programs, longest, 132)


@pytest.mark.parametrize(
    ("programs", "longest", "window", "splits"),
    [(8, 100, None, 1), (8, 2048, None, 16), (8, 131072, None, 32), (512, 131072, None, 1), (8, 131072, 512, 4)],
)
def test_of_an_h200(programs: int, longest: int, window: int | None, splits: int) -> None:
    assert decode_splits(programs, longest, 132, window) == splits


@pytest.mark.parametrize("arguments", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_refusals(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="each must be at least 1"):
        decode_splits(*arguments)
