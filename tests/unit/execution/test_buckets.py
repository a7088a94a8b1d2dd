"""The batch sizes that are captured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.execution.buckets import batch_buckets, bucket_of


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


def test_no_sequences() -> None:
    with pytest.raises(ValueError, match="there is at least one"):
        batch_buckets(0)
