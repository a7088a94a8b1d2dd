"""Gives sequences their KV blocks: from the prefix cache where it can, else from the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from plimsoll_runtime.engine.block_pool import BlockPool
from plimsoll_runtime.engine.prefix_cache import Hit, PrefixCache
from plimsoll_runtime.engine.sequence import SequenceState
from plimsoll_runtime.engine.tiers.costs import Prospect
from plimsoll_runtime.engine.tiers.index import TierIndex

PROBE_LOOKUPS = 64
"""Blocks that are looked up at a time for a sequence that waits."""


class Merge(NamedTuple):
    """A block of a sequence whose contents another block has too; a reference to that one is held for the merge."""

    sequence: SequenceState
    epoch: int
    position: int
    block: int


class Moves(NamedTuple):
    """What a step does to blocks besides computing, in this order; the merges come once it is over.

    Spills (block, slot) go to host memory, restores (slot, block) come back, copies are (source, target).
    """

    spills: list[tuple[int, int]]
    restores: list[tuple[int, int]]
    copies: list[tuple[int, int]]
    merges: list[Merge]


class _Outlook(NamedTuple):
    """What the tiers could do for a sequence behind what the pool has, and how many blocks they are to hold for it."""

    tiers: TierIndex
    hit: Hit
    prospect: Prospect
    wanted: int


class KvAllocator:
    """The block tables of all running sequences; `tiers` are where blocks go that the pool hands out again."""

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_caching: bool, tiers: TierIndex | None = None
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, None if tiers is None else self._spill)
        self.tiers = tiers
        self._cache = PrefixCache(self.pool, block_size) if prefix_caching else None
        self._moves = Moves([], [], [], [])
        self._to_merge: list[list[Merge]] = []

    def root(self, salt: str) -> list[bytes]:
        """The beginning of a sequence's chain of block names."""
        return [] if self._cache is None else [self._cache.root(salt)]

    def begin_step(self) -> None:
        """What is admitted and written from now on belongs to a new step."""
        self._moves = Moves([], [], [], [])
        self.poll_tiers()
        if self._cache is not None:
            self._cache.begin_step()

    def poll_tiers(self) -> None:
        """Take over what was read from the disk or written to it meanwhile."""
        if self.tiers is not None:
            self.tiers.poll()

    def end_step(self) -> Moves:
        """What the step does besides computing."""
        if self._moves.merges:
            self._to_merge.append(self._moves.merges)
        return self._moves

    def resize(self, num_blocks: int, running: Sequence[SequenceState]) -> list[tuple[int, int]]:
        """Have so many blocks from this step on; (source, target) of those that it moves, which come after the spills.

        All who hold blocks learn the new numbers: `running` sequences, and merges of steps that are under way.
        """
        if num_blocks > self.pool.total:
            self.pool.grow(num_blocks)
            return []
        moves = self.pool.shrink(num_blocks)
        moved = dict(moves)
        if moved:
            for sequence in running:
                sequence.block_ids = [moved.get(block, block) for block in sequence.block_ids]
            for merges in self._to_merge:
                merges[:] = [merge._replace(block=moved.get(merge.block, merge.block)) for merge in merges]
        return moves

    def commit(self, spills: Sequence[tuple[int, int]], restores: Sequence[tuple[int, int]]) -> None:
        """A step that moved these blocks is over."""
        if self.tiers is not None and (spills or restores):
            self.tiers.filled(slot for _, slot in spills)
            self.tiers.let_go([slot for slot, _ in restores])

    def learn_computed(self, tokens: int, ns: int) -> None:
        """A step that computed so many tokens, most of them of prompts, took so many nanoseconds."""
        if self.tiers is not None:
            self.tiers.costs.learn_computed(tokens, ns)

    def admit(self, sequence: SequenceState, spare: int) -> bool:
        """Give a sequence blocks for all its known tokens, if `spare` blocks are left then; else change nothing.

        Sets `computed` to what the prefix cache has already, and `restored` to how much of that comes from the tiers.
        """
        hit = self._match(sequence)
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
        self._restore(sequence, hit)
        missing = -(-sequence.known // self.block_size) - len(sequence.block_ids)
        sequence.block_ids.extend(pool.take() for _ in range(missing))
        return True

    def fetch(self, sequence: SequenceState) -> bool:
        """Start to bring what is on the disk of a waiting sequence's prefix to host memory; whether it has to wait.

        Once for each time that it waits: what is not there by then, or gone again, is computed. So is what is
        predicted to be computed sooner than read.
        """
        if (outlook := self._outlook(sequence)) is None:
            return False
        tiers, hit, prospect, wanted = outlook
        sequence.fetch = tiers.fetch(islice(self._names_behind(sequence, hit), wanted))
        if wanted < prospect.ready + prospect.gained and sequence.fetch is None and not sequence.sought:
            tiers.pass_over(prospect)
        return sequence.fetch is not None

    def would_fetch(self, sequence: SequenceState) -> bool:
        """Whether `fetch` would have it wait, as long as the tiers are not polled in between."""
        outlook = self._outlook(sequence)
        return outlook is not None and outlook.wanted > outlook.prospect.ready

    def end_fetch(self, sequence: SequenceState) -> None:
        """The sequence has its blocks, or wants none any longer."""
        if self.tiers is not None and sequence.fetch is not None:
            self.tiers.end_fetch(sequence.fetch)
            sequence.fetch = None

    def lacking(self, sequence: SequenceState, spare: int) -> int:
        """How many more blocks would have to be available for `admit` to succeed; 0 when it would."""
        hit = self._match(sequence)
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

    def catch_up(self, sequence: SequenceState) -> int:
        """Use what others have computed of a sequence's prompt since it was let in; how many tokens that is.

        Where two run through the same prefix at once (one was let in ahead of the other, amid its prompt), each block
        is computed by whoever comes to it first. One that is amid a block gives that up for the whole one.
        """
        cache, before = self._cache, sequence.computed
        while cache is not None and (found := cache.next_block(sequence)) is not None:
            self.pool.share(found)
            own, sequence.block_ids[sequence.published] = sequence.block_ids[sequence.published], found
            self.pool.release([own])
            sequence.published += 1
            sequence.computed = sequence.published * self.block_size
        return sequence.computed - before

    def publish(self, sequence: SequenceState) -> None:
        """Make the full blocks of tokens that are known, and computed by the steps handed out, findable."""
        tokens = min(sequence.computed, sequence.known)
        if self._cache is None or tokens // self.block_size == sequence.published:
            return
        for index, block in self._cache.publish(sequence, tokens):
            self.pool.share(block)
            self._moves.merges.append(Merge(sequence, sequence.epoch, index, block))

    def publish_last(self, sequence: SequenceState) -> None:
        """The same for a sequence that ends. What steps under way compute for it, nobody will have looked at."""
        if self._cache is not None:
            self._cache.publish(sequence, sequence.computed - sequence.pending)

    def merge(self, merges: list[Merge]) -> None:
        """Let each sequence use the block that was there before its own, and give its own back."""
        self._to_merge = [waiting for waiting in self._to_merge if waiting is not merges]
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
        if self.tiers is not None:
            for name in sequence.names:
                self.tiers.forget(name)

    def forget_all(self) -> None:
        """Make everything unfindable that any sequence has computed."""
        self.pool.forget_all()
        if self.tiers is not None:
            self.tiers.forget_all()

    def _match(self, sequence: SequenceState) -> Hit:
        return Hit(0, [], None) if self._cache is None else self._cache.match(sequence)

    def _names_behind(self, sequence: SequenceState, hit: Hit) -> Iterator[bytes]:
        """The names of the blocks that a sequence could use behind what the pool has of its prefix."""
        if self._cache is None or hit.partial is not None:
            return iter(())
        return self._cache.names(sequence, len(hit.blocks))

    def _outlook(self, sequence: SequenceState) -> _Outlook | None:
        """None where nothing of a waiting sequence's prefix can be on a disk, or is fetched for it already."""
        tiers = self.tiers
        if tiers is None or sequence.fetch is not None or not tiers.disk_used:
            return None
        hit = self._match(sequence)
        prospect = tiers.prospect(self._names_behind(sequence, hit))
        return _Outlook(tiers, hit, prospect, tiers.costs.choose(prospect, self.block_size, again=sequence.sought))

    def _spill(self, block: int, name: bytes) -> None:
        """The pool hands out a block whose contents could still be found: keep them in the tiers, if there is room."""
        assert self.tiers is not None
        if (slot := self.tiers.spill(name)) is not None:
            self._moves.spills.append((block, slot))

    def _restore(self, sequence: SequenceState, hit: Hit) -> None:
        """Give a sequence the blocks behind its hit that lie in host memory; the step fills them before it computes."""
        if self.tiers is None:
            return
        slots = []
        for name in self._names_behind(sequence, hit):
            if (slot := self.tiers.find(name)) is None:
                break
            slots.append(slot)
        # Held first: the blocks that are taken may be spilled, and slots are wanted for that.
        self.tiers.hold(slots)
        for slot in slots:
            block = self.pool.take()
            sequence.block_ids.append(block)
            self._moves.restores.append((slot, block))
        sequence.computed = max(hit.tokens, min(len(sequence.block_ids) * self.block_size, sequence.reusable_tokens))
        sequence.restored = sequence.computed - hit.tokens

    def _demand(self, sequence: SequenceState, hit: Hit) -> int:
        """Available blocks that the sequence would use up: fresh ones, and found ones that nobody holds."""
        shared = sum(not self.pool.is_idle(block) for block in hit.blocks)
        return -(-sequence.known // self.block_size) - shared

    def _use_partial(self, sequence: SequenceState, hit: Hit, takes_over: bool) -> None:
        if hit.partial is None:
            return
        if takes_over:
            self.pool.share(hit.partial)
            self.pool.forget(hit.partial)
            sequence.block_ids.append(hit.partial)
            return
        target = self.pool.take()
        self._moves.copies.append((hit.partial, target))
        sequence.block_ids.append(target)

    def check_integrity(
        self, running: Sequence[SequenceState], merges: Sequence[Merge], slots: Sequence[int] = ()
    ) -> None:
        """Raises AssertionError when a block is leaked, shared while somebody writes to it, or missing.

        `merges` and `slots` of the tiers are held for steps that are under way and for sequences that wait.
        """
        self.pool.check_integrity()
        if self.tiers is not None:
            self.tiers.check_integrity(slots)
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
