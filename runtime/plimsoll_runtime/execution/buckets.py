"""The sizes for which steps are captured: few enough to capture, near enough to waste little."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def batch_buckets(most: int) -> list[int]:
    """1, 2, 4, 8, then in steps of 8, and of a quarter of the power of 2 below from 64 on; the last is `most`.

    A batch is so padded by at most 8 rows, or by a quarter of itself. Raises ValueError for less than one sequence.
    """
    if most < 1:
        raise ValueError(f"batches of up to {most} sequences; there is at least one")
    sizes, size = [1, 2, 4], 8
    while size < most:
        sizes.append(size)
        size += max(8, (1 << (size.bit_length() - 1)) // 4)
    return [*(s for s in sizes if s < most), most]


def row_buckets(most: int) -> list[int]:
    """Powers of two from 16 on, and those and their halves: 16, 24, 32, 48, 64; the last is `most`.

    A step of more than 16 rows is so padded by at most a half of itself, by a quarter on average. Raises ValueError for
    less than one row.
    """
    if most < 1:
        raise ValueError(f"steps of up to {most} rows; there is at least one")
    sizes = [size for k in range(4, most.bit_length()) for size in (1 << k, 3 << (k - 1))]
    return [*(s for s in sizes if s < most), most]


def bucket_of(count: int, buckets: Sequence[int]) -> int | None:
    """The smallest bucket that holds `count` sequences, or rows; None where none does."""
    index = bisect_left(buckets, count)
    return buckets[index] if index < len(buckets) else None
