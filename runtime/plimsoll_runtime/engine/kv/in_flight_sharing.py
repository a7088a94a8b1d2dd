"""In-flight sharing: running sequences use full blocks that other running sequences have just computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from plimsoll_runtime.engine.kv.block_pool import BlockPool
from plimsoll_runtime.engine.kv.prefix_cache import PrefixCache
from plimsoll_runtime.engine.kv.sliding_window import Windows
from plimsoll_runtime.engine.sequence import SequenceKv, SequenceState


class Merge(NamedTuple):
    """Block `number` of a sequence in a cache group duplicates `block`, and is to be replaced by it.

    The merge holds a reference to `block` until it is applied.
    """

    kv: SequenceKv
    group: int
    number: int
    block: int


class InFlightSharing:
    """Shares blocks among the running sequences of a pool. Without a `cache` it does nothing."""

    def __init__(self, pool: BlockPool, cache: PrefixCache | None, windows: Windows, block_size: int) -> None:
        self._pool = pool
        self._cache = cache
        self._windows = windows
        self._block_size = block_size
        self._merges: list[Merge] = []
        self._to_merge: list[list[Merge]] = []

    def publish(self, sequence: SequenceState) -> None:
        """Publish the full blocks of a sequence, as far as their tokens are known and computed by the steps planned so
        far.

        A block whose contents another block has already will be merged with that one.
        """
        tokens = min(sequence.computed, sequence.known)
        if self._cache is None or tokens // self._block_size == sequence.kv.published:
            return
        pool, reserved = self._pool, self._windows.reserved
        for group, number, block in self._cache.publish(sequence, tokens):
            if reserved and pool.is_idle(block) and pool.available <= reserved:
                continue
            pool.share(block)
            self._merges.append(Merge(sequence.kv, group, number, block))

    def publish_last(self, sequence: SequenceState) -> None:
        """Publish the full blocks of a sequence that ends, except tokens that steps in progress compute for it."""
        if self._cache is not None:
            self._cache.publish(sequence, sequence.computed - sequence.pending)

    def catch_up(self, sequence: SequenceState) -> int:
        """Use blocks of the prompt that other sequences have computed since this one was admitted; return the tokens
        gained.

        If two sequences with the same prefix run at the same time, each block is computed by the sequence that reaches
        it first. A partly computed block is replaced by the full one.
        """
        cache, kv, before = self._cache, sequence.kv, sequence.computed
        while cache is not None and (found := cache.next_blocks(sequence)) is not None:
            for table, block in zip(kv.tables, found, strict=True):
                self._pool.share(block)
                if kv.published == table.end:
                    table.blocks.append(block)
                else:
                    self._pool.release([table.replace(kv.published, block)])
            kv.tables_sent = False
            kv.published += 1
            sequence.computed = kv.published * self._block_size
            self._windows.trim(sequence)
        if sequence.computed > before and self._windows.groups:
            self._windows.reserve(sequence, sequence.computed)
        return sequence.computed - before

    def end_step(self) -> list[Merge]:
        """Return the merges to apply after the step that was just planned."""
        merges, self._merges = self._merges, []
        if merges:
            self._to_merge.append(merges)
        return merges

    def merge(self, merges: list[Merge]) -> None:
        """Replace each duplicate by the block that was published first, and release the duplicate."""
        if not merges:
            return
        self._to_merge = [waiting for waiting in self._to_merge if waiting is not merges]
        for kv, group, number, block in merges:
            if kv.tables and number >= kv.tables[group].first:
                self._pool.release([kv.tables[group].replace(number, block)])
                kv.tables_sent = False
            else:
                self._pool.release([block])

    def renumber(self, moved: Mapping[int, int]) -> None:
        """Apply new block numbers to merges that are still to be applied."""
        for merges in self._to_merge:
            merges[:] = [merge._replace(block=moved.get(merge.block, merge.block)) for merge in merges]
