"""The block tables of a step's sequences, where they lie."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple


class BlockTables(NamedTuple):
    """Sequence i's blocks, in order, are `counts[i]` of `blocks` from `begins[i]` on. Between tables may lie anything.

    Whoever writes into `blocks` (int32) sees to it that the cache has each of them.
    """

    blocks: array[int]
    begins: Sequence[int]
    counts: Sequence[int]

    @classmethod
    def of(cls, tables: Sequence[Sequence[int]]) -> BlockTables:
        """From lists, one table behind the other."""
        counts = [len(table) for table in tables]
        begins = list(accumulate(counts[:-1], initial=0))
        return cls(array("i", chain.from_iterable(tables)), begins, counts)
