"""Divides the queries of a group, and the blocks that they share, among programs."""

from __future__ import annotations

from plimsoll_kernels.paged_attention.decode.splits import MAX_SPLITS
from plimsoll_kernels.paged_attention.tile.sizes import tile_rows


def tile_members(size: int, group: int, itemsize: int) -> int:
    """Return the number of sequences whose queries of a KV head are in one tile, for which a block is read once."""
    return tile_rows(size, group, itemsize) // group


def prefix_splits(sequences: int, members: int, kv_heads: int, processors: int) -> int:
    """Return the most programs among which a prefix is divided: one for each multiprocessor, if all sequences are one
    group.

    One wave instead of several: a program has two stages of keys and values in flight, more than a multiprocessor's
    share of the bandwidth delivers within a latency, and each split has sums to write and read for each member. It does
    not depend on lengths: short prefixes leave splits without work.
    """
    return min(max(1, processors // (-(-sequences // members) * kv_heads)), MAX_SPLITS)
