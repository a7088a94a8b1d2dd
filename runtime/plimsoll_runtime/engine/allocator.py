"""Gives sequences their KV blocks: from the prefix cache where it can, else from the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from plimsoll_runtime.engine.block_pool import BlockPool
from plimsoll_runtime.engine.prefix_cache import Hit, PrefixCache
from plimsoll_runtime.engine.sequence import SequenceState

PROBE_LOOKUPS = 64
"""Blocks that are looked up at a time for a sequence that waits."""


class Merge(NamedTuple):
    """A block of a sequence whose contents another block has too; a reference to that one is held for the merge."""

    sequence: SequenceState
    epoch: int
    position: int
    block: int


class KvAllocator:
    """The block tables of all running sequences."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self._cache = PrefixCache(self.pool, block_size) if prefix_caching else None
        self._copies: list[tuple[int, int]] = []
        self._merges: list[Merge] = []

    def root(self, salt: str) -> list[bytes]:
        """The beginning of a sequence's chain of block names."""
        return [] if self._cache is None else [self._cache.root(salt)]

    def begin_step(self) -> None:
        """What is admitted and written from now on belongs to a new step."""
        self._copies, self._merges = [], []
        if self._cache is not None:
            self._cache.begin_step()

    def end_step(self) -> tuple[list[tuple[int, int]], list[Merge]]:
        """The block copies (source, target) that the step starts with, and the merges to do once it is over."""
        return self._copies, self._merges

    def admit(self, sequence: SequenceState, spare: int) -> bool:
        """Give a sequence blocks for all its known tokens, if `spare` blocks are left then; else change nothing.

        Sets `computed` to what the prefix cache has already.
        """
        hit = Hit(0, [], None) if self._cache is None else self._cache.match(sequence)
        pool = self.pool
        if self._demand(sequence, hit) + spare > pool.available:
            return False
        takes_over = hit.partial is not None and pool.is_idle(hit.partial)
        for block in hit.blocks:
            pool.share(block)
        sequence.block_ids = hit.blocks
        sequence.published = len(hit.blocks)
        sequence.computed = hit.tokens
        self._use_partial(sequence, hit, takes_over)
        missing = -(-len(sequence.token_ids) // self.block_size) - len(sequence.block_ids)
        sequence.block_ids.extend(pool.take() for _ in range(missing))
        return True

    def lacking(self, sequence: SequenceState, spare: int) -> int:
        """How many more blocks would have to be available for `admit` to succeed; 0 when it would."""
        hit = Hit(0, [], None) if self._cache is None else self._cache.match(sequence)
        return max(0, self._demand(sequence, hit) + spare - self.pool.available)

    def growth(self, sequence: SequenceState) -> int:
        """Blocks that are kept for a running sequence: a spare one, and one that it takes in the next step."""
        return 1 + (sequence.computed == len(sequence.block_ids) * self.block_size)

    def probe(self, sequence: SequenceState) -> int:
        """How many of a waiting sequence's leading tokens are cached; bounded work, as it goes on from `prefix`."""
        return 0 if self._cache is None else self._cache.probe(sequence, sequence.prefix, PROBE_LOOKUPS)

    def extend(self, sequence: SequenceState) -> None:
        """One more block at the end of the table. Raises LookupError when none is available."""
        sequence.block_ids.append(self.pool.take())

    def publish(self, sequence: SequenceState) -> None:
        """Make the full blocks of tokens that are known, and computed by the steps handed out, findable."""
        tokens = min(sequence.computed, len(sequence.token_ids))
        if self._cache is None or tokens // self.block_size == sequence.published:
            return
        for index, block in self._cache.publish(sequence, tokens):
            self.pool.share(block)
            self._merges.append(Merge(sequence, sequence.epoch, index, block))

    def publish_last(self, sequence: SequenceState) -> None:
        """The same for a sequence that ends. What steps under way compute for it, nobody will have looked at."""
        if self._cache is not None:
            self._cache.publish(sequence, sequence.computed - sequence.pending)

    def merge(self, merges: list[Merge]) -> None:
        """Let each sequence use the block that was there before its own, and give its own back."""
        for sequence, epoch, position, block in merges:
            if sequence.epoch == epoch:
                own, sequence.block_ids[position] = sequence.block_ids[position], block
                self.pool.release([own])
            else:
                self.pool.release([block])

    def release(self, sequence: SequenceState) -> None:
        """Take all blocks from a sequence; what it published stays findable until the blocks are used again."""
        self.pool.release(sequence.block_ids)
        sequence.block_ids = []
        sequence.published = 0
        sequence.computed = 0
        sequence.epoch += 1

    def disown(self, sequence: SequenceState) -> None:
        """Make what a broken sequence computed unfindable, so that nobody else reads it."""
        for block in sequence.block_ids:
            self.pool.forget(block)

    def _demand(self, sequence: SequenceState, hit: Hit) -> int:
        """Available blocks that the sequence would use up: fresh ones, and found ones that nobody holds."""
        shared = sum(not self.pool.is_idle(block) for block in hit.blocks)
        return -(-len(sequence.token_ids) // self.block_size) - shared

    def _use_partial(self, sequence: SequenceState, hit: Hit, takes_over: bool) -> None:
        if hit.partial is None:
            return
        if takes_over:
            self.pool.share(hit.partial)
            self.pool.forget(hit.partial)
            sequence.block_ids.append(hit.partial)
            return
        target = self.pool.take()
        self._copies.append((hit.partial, target))
        sequence.block_ids.append(target)

    def check_integrity(self, running: Sequence[SequenceState], merges: Sequence[Merge]) -> None:
        """Raises AssertionError when a block is leaked, shared while somebody writes to it, or missing."""
        self.pool.check_integrity()
        holders = Counter(block for sequence in running for block in sequence.block_ids)
        held = holders + Counter(merge.block for merge in merges)
        for block in range(1, self.pool.total + 1):
            references = self.pool.references(block)
            assert references == held[block], f"block {block}: {references} references, {held[block]} holders"
        for sequence in running:
            table = sequence.block_ids
            assert len(set(table)) == len(table), f"{sequence.request_id} has a block twice"
            assert len(table) * self.block_size >= sequence.computed, f"{sequence.request_id} lacks a block"
            for block in table[sequence.computed // self.block_size :]:
                assert holders[block] == 1, f"block {block} is shared and {sequence.request_id} will write to it"
                assert not self.pool.is_named(block), f"block {block} can be found before it is full"
