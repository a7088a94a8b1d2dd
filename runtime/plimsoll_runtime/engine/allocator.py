"""Gives sequences their KV blocks: from the prefix cache where it can, else from the pool.

Layers of one rule form groups, which have tables of their own over one pool of blocks. Groups whose layers see the
whole context get all blocks of what is known at once. The others get theirs chunk by chunk, and give back what fell out
when the next chunk is planned: no earlier, for in a step somebody else might write there before it is read. What such a
sequence will still need for its prompt is promised to it, so that nobody else is let in on its blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from plimsoll_runtime.engine.block_pool import PADDING_BLOCK, BlockPool
from plimsoll_runtime.engine.groups.full import Full
from plimsoll_runtime.engine.groups.rule import ONE_FULL, Rule, first_block, peak_blocks
from plimsoll_runtime.engine.plan import BlockTable
from plimsoll_runtime.engine.prefix_cache import Hit, PrefixCache, Run
from plimsoll_runtime.engine.sequence import SequenceState
from plimsoll_runtime.engine.table import Table
from plimsoll_runtime.engine.tiers.costs import Prospect
from plimsoll_runtime.engine.tiers.index import TierIndex

PROBE_LOOKUPS = 64
"""Blocks that are looked up at a time for a sequence that waits."""


class Merge(NamedTuple):
    """A block of a sequence whose contents another block has too; a reference to that one is held for the merge."""

    sequence: SequenceState
    epoch: int
    group: int
    number: int
    block: int


class Moves(NamedTuple):
    """What a step does to blocks besides computing, in this order; the merges come once it is over.

    Spills (block, frame) go to host memory, restores (frame, block) come back, copies are (source, target).
    """

    spills: list[tuple[int, int]]
    restores: list[tuple[int, int]]
    copies: list[tuple[int, int]]
    merges: list[Merge]


class _Outlook(NamedTuple):
    """What the tiers could do for a sequence behind what the pool has, and how many blocks they are to hold for it."""

    tiers: TierIndex
    names: Iterable[bytes]
    prospect: Prospect
    wanted: int


class KvAllocator:
    """The block tables of all running sequences; `tiers` are where blocks go that the pool hands out again."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool,
        tiers: TierIndex | None = None,
        rules: Sequence[Rule] = ONE_FULL,
    ) -> None:
        self.block_size = block_size
        self.rules = tuple(rules)
        self._sliding = [group for group, rule in enumerate(rules) if not isinstance(rule, Full)]
        self._promised = 0
        self.pool = BlockPool(num_blocks, None if tiers is None else self._spill)
        self.tiers = tiers
        self._cache = PrefixCache(self.pool, block_size, rules) if prefix_caching else None
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
                sequence.planned = None
                for table in sequence.tables:
                    table.blocks = [moved.get(block, block) for block in table.blocks]
            for merges in self._to_merge:
                merges[:] = [merge._replace(block=moved.get(merge.block, merge.block)) for merge in merges]
        return moves

    def commit(self, spills: Sequence[tuple[int, int]], restores: Sequence[tuple[int, int]]) -> None:
        """A step that moved these blocks is over."""
        if self.tiers is not None and (spills or restores):
            self.tiers.filled(frame for _, frame in spills)
            self.tiers.let_go([frame for frame, _ in restores])

    def learn_computed(self, tokens: int, ns: int) -> None:
        """A step that computed so many tokens, most of them of prompts, took so many nanoseconds."""
        if self.tiers is not None:
            self.tiers.costs.learn_computed(tokens, ns)

    def admit(self, sequence: SequenceState, spare: int) -> bool:
        """Give a sequence the blocks that it begins with, if `spare` are left for each group then; else change nothing.

        Sets `computed` to what the prefix cache has already, and `restored` to how much of that comes from the tiers.
        """
        hit = self._match(sequence)
        if self._lacking(sequence, hit, spare) > 0:
            return False
        sequence.published = hit.end
        start, frames = (hit, []) if hit.partial is not None else self._with_tiers(sequence, hit)
        sequence.computed, sequence.restored = start.tokens, start.tokens - hit.tokens
        self._take_over(sequence, start, frames)
        missing = -(-sequence.known // self.block_size)
        for table, rule in zip(sequence.tables, self.rules, strict=True):
            if isinstance(rule, Full):
                table.blocks.extend(self.pool.take() for _ in range(missing - table.end))
        sequence.planned = None
        sequence.room = min(table.end for table in sequence.tables) * self.block_size
        self._promise(sequence, sequence.computed)
        return True

    def grow(self, sequence: SequenceState, tokens: int) -> bool:
        """Have room for the first `tokens` tokens; False when too few blocks are available, and then none is taken.

        What nobody reads again is given back first. What is promised to others is not available.
        """
        if self._sliding:
            self.trim(sequence)
        size, pool, missing = self.block_size, self.pool, 0
        needed = -(-tokens // size)
        for table in sequence.tables:
            missing += max(0, needed - table.first - len(table.blocks))
        if missing > pool.available - self._promised + sequence.promised:
            return False
        for table in sequence.tables:
            for _ in range(needed - table.first - len(table.blocks)):
                table.blocks.append(pool.take())
        # Behind a chunk the tables are looked at before the next one, so that the chunk's blocks are given back.
        chunk = self._sliding and tokens > sequence.computed + 1
        sequence.room = tokens if chunk else needed * size
        sequence.planned = None
        if self._sliding:
            self._promise(sequence, tokens)
        return True

    def chunk(self, sequence: SequenceState, most: int, spare: int) -> int:
        """How many tokens, up to `most`, the next chunk of a prompt may have with what is left beside `spare` blocks.

        There are blocks for more where `room` says so.
        """
        if not self._sliding:
            return most
        self.trim(sequence)
        free = self.pool.available - (self._promised - sequence.promised) - spare * len(self.rules)
        blocks = max(free, sequence.promised) // len(self._sliding)
        end = min(sequence.tables[group].end for group in self._sliding) + blocks
        return max(1, min(most, end * self.block_size - sequence.computed))

    def trim(self, sequence: SequenceState) -> None:
        """Give back the blocks of which no step that is still to be planned reads anything."""
        for group in self._sliding:
            table = sequence.tables[group]
            given = first_block(self.rules[group], sequence.computed, self.block_size) - table.first
            if given > 0:
                self.pool.release(table.blocks[:given])
                del table.blocks[:given]
                table.first += given
                sequence.planned = None

    def plan(self, sequence: SequenceState) -> Sequence[BlockTable]:
        """The tables for a plan, copied: they are `planned` for all steps in which they are the same."""
        sequence.planned = planned = [table.frozen() for table in sequence.tables]
        return planned

    def fetch(self, sequence: SequenceState) -> bool:
        """Start to bring what is on the disk of a waiting sequence's prefix to host memory; whether it has to wait.

        Once for each time that it waits: what is not there by then, or gone again, is computed. So is what is
        predicted to be computed sooner than read.
        """
        if (outlook := self._outlook(sequence)) is None:
            return False
        tiers, names, prospect, wanted = outlook
        sequence.fetch = tiers.fetch(islice(names, wanted))
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
        return max(0, self._lacking(sequence, self._match(sequence), spare))

    def growth(self, sequence: SequenceState) -> int:
        """Blocks a group that are kept for a running sequence: a spare one, and one that it takes in the next step."""
        return 1 + (sequence.computed >= sequence.room)

    def given_up(self, sequence: SequenceState) -> int:
        """Blocks that a running sequence has, or that are kept for it."""
        held = sum(len(table.blocks) for table in sequence.tables)
        return held + sequence.promised + self.growth(sequence) * len(self.rules)

    def probe(self, sequence: SequenceState) -> int:
        """How many of a waiting sequence's leading tokens are cached; bounded work, as it goes on from `prefix`."""
        return 0 if self._cache is None else self._cache.probe(sequence, sequence.prefix, PROBE_LOOKUPS)

    def catch_up(self, sequence: SequenceState) -> int:
        """Use what others have computed of a sequence's prompt since it was let in; how many tokens that is.

        Where two run through the same prefix at once (one was let in ahead of the other, amid its prompt), each block
        is computed by whoever comes to it first. One that is amid a block gives that up for the whole one.
        """
        cache, before = self._cache, sequence.computed
        while cache is not None and (found := cache.next_blocks(sequence)) is not None:
            for table, block in zip(sequence.tables, found, strict=True):
                self.pool.share(block)
                if sequence.published == table.end:
                    table.blocks.append(block)
                else:
                    self._replace(table, sequence.published, block)
            sequence.planned = None
            sequence.published += 1
            sequence.computed = sequence.published * self.block_size
            self.trim(sequence)
        if sequence.computed > before and self._sliding:
            self._promise(sequence, sequence.computed)
        return sequence.computed - before

    def publish(self, sequence: SequenceState) -> None:
        """Make the full blocks of tokens that are known, and computed by the steps handed out, findable."""
        tokens = min(sequence.computed, sequence.known)
        if self._cache is None or tokens // self.block_size == sequence.published:
            return
        for group, number, block in self._cache.publish(sequence, tokens):
            if self._promised and self.pool.is_idle(block) and self.pool.available <= self._promised:
                continue
            self.pool.share(block)
            self._moves.merges.append(Merge(sequence, sequence.epoch, group, number, block))

    def publish_last(self, sequence: SequenceState) -> None:
        """The same for a sequence that ends. What steps under way compute for it, nobody will have looked at."""
        if self._cache is not None:
            self._cache.publish(sequence, sequence.computed - sequence.pending)

    def merge(self, merges: list[Merge]) -> None:
        """Let each sequence use the block that was there before its own, and give its own back."""
        self._to_merge = [waiting for waiting in self._to_merge if waiting is not merges]
        for sequence, epoch, group, number, block in merges:
            if sequence.epoch == epoch and number >= sequence.tables[group].first:
                self._replace(sequence.tables[group], number, block)
                sequence.planned = None
            else:
                self.pool.release([block])

    def release(self, sequence: SequenceState) -> None:
        """Take all blocks from a sequence; what it published stays findable until the blocks are used again."""
        self.pool.release(_in_order(sequence.tables))
        self._promised -= sequence.promised
        sequence.tables = []
        sequence.planned = None
        sequence.promised = 0
        sequence.published = 0
        sequence.computed = 0
        sequence.epoch += 1

    def disown(self, sequence: SequenceState) -> None:
        """Make what a broken sequence computed unfindable, so that nobody else reads it."""
        for table in sequence.tables:
            for block in table.blocks:
                self.pool.forget(block)
        if self._cache is None:
            return
        for name in self._cache.all_names(sequence):
            found = self.pool.find(name) if self._sliding else None
            if found is not None:  # it is given back, and idle
                self.pool.forget(found)
            if self.tiers is not None:
                self.tiers.forget(name)

    def forget_all(self) -> None:
        """Make everything unfindable that any sequence has computed."""
        self.pool.forget_all()
        if self.tiers is not None:
            self.tiers.forget_all()

    @property
    def held(self) -> int:
        """Blocks that somebody holds, or that are promised."""
        return self.pool.used + self._promised

    def _match(self, sequence: SequenceState) -> Hit:
        if self._cache is None:
            return Hit(0, [Run(0, []) for _ in self.rules], None)
        return self._cache.match(sequence)

    def _outlook(self, sequence: SequenceState) -> _Outlook | None:
        """None where nothing of a waiting sequence's prefix can be on a disk, or is fetched for it already."""
        tiers = self.tiers
        if tiers is None or sequence.fetch is not None or not tiers.disk_used:
            return None
        names, tokens = self._names_behind(sequence, self._match(sequence), tiers)
        prospect = tiers.prospect(names)
        return _Outlook(tiers, names, prospect, tiers.costs.choose(prospect, tokens, again=sequence.sought))

    def _names_behind(self, sequence: SequenceState, hit: Hit, tiers: TierIndex) -> tuple[Sequence[bytes], int]:
        """Names of the blocks that a sequence could use behind what the pool has, and how many tokens each stands for.

        In the order of its tokens; of windows only those that are read behind the last of them.
        """
        cache, size = self._cache, self.block_size
        if cache is None or hit.partial is not None:
            return (), size
        if not self._sliding and len(self.rules) == 1:
            return list(cache.names(sequence, hit.end)), size
        find = self.pool.find
        end = cache.full_reach(sequence, lambda name: tiers.state(name) if (b := find(name)) is None else b)
        names = [name for name in cache.names_to(sequence, hit.end, end) if find(name) is None]
        return names, max(1, (end - hit.end) * size // max(1, len(names)))

    def _spill(self, block: int, name: bytes) -> None:
        """The pool hands out a block whose contents could still be found: keep them in the tiers, if there is room."""
        assert self.tiers is not None
        if (frame := self.tiers.spill(name)) is not None:
            self._moves.spills.append((block, frame))

    def _with_tiers(self, sequence: SequenceState, hit: Hit) -> tuple[Hit, list[int]]:
        """The hit with what lies in host memory behind it: the padding block stands for each that a frame fills."""
        tiers, cache, size = self.tiers, self._cache, self.block_size
        if tiers is None or cache is None or not tiers.frames_used:
            return hit, []
        find, limit = self.pool.find, sequence.reusable_tokens

        def has(name: bytes) -> int | None:
            return tiers.find(name) if (block := find(name)) is None else block

        end = cache.reach(sequence, has)
        if end * size > limit and any(find(cache.name(sequence, g, end - 1)) for g in range(len(self.rules))):
            # Of the last one a part is used, and whoever writes behind that part must not share it.
            end = cache.agreed(sequence, end - 1, has)
        if end <= hit.end:
            return hit, []
        tokens, runs, frames = min(end * size, limit), [], []
        for group, rule in enumerate(self.rules):
            run = Run(first_block(rule, tokens, size), [])
            for number in range(run.first, end):
                name = cache.name(sequence, group, number)
                block = find(name)
                run.blocks.append(PADDING_BLOCK if block is None else block)
                if block is None and (frame := tiers.find(name)) is not None:
                    frames.append(frame)
            runs.append(run)
        return Hit(tokens, runs, None), frames

    def _take_over(self, sequence: SequenceState, start: Hit, frames: list[int]) -> None:
        """Give a sequence the blocks that it begins with: those that are found, and copies of others."""
        pool = self.pool
        idle = [start.partial is not None and pool.is_idle(block) for block in start.partial or ()]
        # Held first: the blocks that are taken may be spilled, and frames are wanted for that.
        for run in start.runs:
            for block in run.blocks:
                if block != PADDING_BLOCK:
                    pool.share(block)
        if self.tiers is not None:
            self.tiers.hold(frames)
        sequence.tables = [Table(run.first, run.blocks) for run in start.runs]
        if frames:
            self._restore(sequence, frames)
        if start.partial is None:
            return
        for block, own in zip(start.partial, idle, strict=True):
            if own:
                pool.share(block)
                pool.forget(block)
        for table, block, own in zip(sequence.tables, start.partial, idle, strict=True):
            table.blocks.append(block if own else self._copied(block))

    def _copied(self, block: int) -> int:
        target = self.pool.take()
        self._moves.copies.append((block, target))
        return target

    def _restore(self, sequence: SequenceState, frames: Sequence[int]) -> None:
        """Have blocks filled from these frames where the padding block stands for them."""
        left = iter(frames)
        for table in sequence.tables:
            for place, block in enumerate(table.blocks):
                if block == PADDING_BLOCK:
                    table.blocks[place] = self.pool.take()
                    self._moves.restores.append((next(left), table.blocks[place]))

    def _lacking(self, sequence: SequenceState, hit: Hit, spare: int) -> int:
        """Blocks that `admit` needs beyond what is available: fresh ones, and found ones that nobody holds."""
        peaks = (peak_blocks(rule, hit.tokens, sequence.known, self.block_size) for rule in self.rules)
        # Who shares a block that slides out of a window for somebody leaves nothing for that one to go on with.
        shared = sum(
            not self.pool.is_idle(block)
            for run, rule in zip(hit.runs, self.rules, strict=True)
            if isinstance(rule, Full)
            for block in run.blocks
        )
        return sum(peaks) - shared + spare * len(self.rules) + self._promised - self.pool.available

    def _promise(self, sequence: SequenceState, tokens: int) -> None:
        """Keep what a sequence still needs for what is known of it, once `tokens` tokens are computed.

        A block that others hold too is not free once it is given back, so another one is kept for it.
        """
        promised, size = 0, self.block_size
        if tokens < sequence.known:
            for group in self._sliding:
                rule, table = self.rules[group], sequence.tables[group]
                kept = table.blocks[max(0, first_block(rule, tokens, size) - table.first) :]
                promised += max(0, peak_blocks(rule, tokens, sequence.known, size) - len(kept))
                promised += sum(self.pool.references(block) > 1 for block in kept)
        self._promised += promised - sequence.promised
        sequence.promised = promised

    def _replace(self, table: Table, number: int, block: int) -> None:
        """Have a block, which is held already, in the place of the table's own."""
        own, table.blocks[number - table.first] = table.blocks[number - table.first], block
        self.pool.release([own])

    def check_integrity(
        self, running: Sequence[SequenceState], merges: Sequence[Merge], frames: Sequence[int] = ()
    ) -> None:
        """Raises AssertionError when a block is leaked, shared while somebody writes to it, or missing.

        `merges` and `frames` of the tiers are held for steps that are under way and for sequences that wait.
        """
        self.pool.check_integrity()
        if self.tiers is not None:
            self.tiers.check_integrity(frames)
        tables = [(group, table) for sequence in running for group, table in enumerate(sequence.tables)]
        holders = Counter(block for _, table in tables for block in table.blocks)
        held = holders + Counter(merge.block for merge in merges)
        for block in range(1, self.pool.total + 1):
            references = self.pool.references(block)
            assert references == held[block], f"block {block}: {references} references, {held[block]} holders"
        owners = {(block, group) for group, table in tables for block in table.blocks}
        assert len(owners) == len(holders), "a block is in tables of two groups"
        assert self._promised == sum(sequence.promised for sequence in running), "promised blocks are miscounted"
        for sequence in running:
            assert len(sequence.tables) == len(self.rules), f"{sequence.request_id} lacks a table"
            assert sequence.planned in (None, [t.frozen() for t in sequence.tables]), "a plan would have an old table"
            for rule, table in zip(self.rules, sequence.tables, strict=True):
                self._check_table(sequence, rule, table, holders)

    def _check_table(self, sequence: SequenceState, rule: Rule, table: Table, holders: Counter[int]) -> None:
        blocks, size, who = table.blocks, self.block_size, sequence.request_id
        assert len(set(blocks)) == len(blocks), f"{who} has a block twice"
        assert table.end * size >= max(sequence.computed, sequence.room), f"{who} lacks a block at the end"
        assert table.first <= first_block(rule, sequence.computed, size), f"{who} has given back what it reads"
        for block in blocks[max(0, sequence.computed // size - table.first) :]:
            assert holders[block] == 1, f"block {block} is shared and {who} will write to it"
            assert not self.pool.is_named(block), f"block {block} can be found before it is full"


def _in_order(tables: Sequence[Table]) -> Sequence[int]:
    """The blocks of all tables, by their numbers in the sequence."""
    if len(tables) == 1:
        return tables[0].blocks
    numbered = [(number, block) for table in tables for number, block in enumerate(table.blocks, table.first)]
    return [block for _, block in sorted(numbered)]
