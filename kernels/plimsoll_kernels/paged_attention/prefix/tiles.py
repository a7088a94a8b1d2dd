"""How the queries of a group are divided among programs, and the blocks that they share."""

from __future__ import annotations

from plimsoll_kernels.paged_attention.decode.splits import MAX_SPLITS
from plimsoll_kernels.paged_attention.tile.sizes import tile_rows


def tile_members(size: int, group: int, itemsize: int) -> int:
    """How many sequences have the queries of a KV head in one tile, for which a block is read once."""
    return tile_rows(size, group, itemsize) // group


def prefix_splits(sequences: int, members: int, kv_heads: int, processors: int) -> int:
    """Among how many programs a prefix is divided at most: a program for each multiprocessor, were all one group.

    One wave and not several: a program has two stages of keys and values on their way, which is more than what a
    multiprocessor's share of the bandwidth brings in a latency; and each split is sums to write and read for each
    member. It does not depend on lengths: short prefixes leave splits without work.
    """
    return min(max(1, processors // (-(-sequences // members) * kv_heads)), MAX_SPLITS)
