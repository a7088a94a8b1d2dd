"""The capture sizes of batches and of rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.execution.graphs.capture import batch_buckets, bucket_of, row_buckets


def test_of_256() -> None:
    assert batch_buckets(256) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256]


@given(most=st.integers(1, 5000), sequences=st.integers(1, 6000))
def test_a_batch_fits_its_bucket_and_wastes_little(most: int, sequences: int) -> None:
    buckets = batch_buckets(most)
    assert buckets == sorted(set(buckets))
    assert buckets[-1] == most
    bucket = bucket_of(sequences, buckets)
    assert (bucket is None) == (sequences > most)
    if bucket is not None:
        assert sequences <= bucket <= sequences + max(7, sequences // 4)
        assert bucket_of(bucket, buckets) == bucket


def test_rows() -> None:
    assert row_buckets(512) == [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    assert [row_buckets(most) for most in (1, 16, 17, 40)] == [[1], [16], [16, 17], [16, 24, 32, 40]]
    with pytest.raises(ValueError, match="must allow at least 1"):
        row_buckets(0)


@given(most=st.integers(1, 5000), rows=st.integers(1, 6000))
def test_rows_fit_their_bucket_and_waste_at_most_a_half(most: int, rows: int) -> None:
    buckets = row_buckets(most)
    assert buckets == sorted(set(buckets))
    bucket = bucket_of(rows, buckets)
    assert (bucket is None) == (rows > most)
    if bucket is not None:
        assert rows <= bucket <= max(16, rows + rows // 2)


def test_no_sequences() -> None:
    with pytest.raises(ValueError, match="must allow at least 1"):
        batch_buckets(0)
