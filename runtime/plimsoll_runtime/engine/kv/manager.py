"""Allocates the KV blocks of sequences, from the prefix cache if possible, else from the pool.

Layers with the same cache rule form a cache group. All groups have their own block tables over one pool. Groups whose
layers attend to the whole context get blocks for all known tokens at admission. The others get theirs chunk by chunk
(see `sliding_window`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from plimsoll_runtime.engine.kv.block_pool import PADDING_BLOCK, BlockPool
from plimsoll_runtime.engine.kv.cache_groups import ONE_FULL, Full, Rule, first_block, peak_blocks
from plimsoll_runtime.engine.kv.in_flight_sharing import InFlightSharing, Merge
from plimsoll_runtime.engine.kv.offload.index import TierIndex
from plimsoll_runtime.engine.kv.offload.prefixes import TieredPrefixes
from plimsoll_runtime.engine.kv.prefix_cache import Hit, PrefixCache, Run
from plimsoll_runtime.engine.kv.sliding_window import Windows
from plimsoll_runtime.engine.kv.snapshot_pool import SnapshotRows
from plimsoll_runtime.engine.kv.state_snapshots import SnapshotSchedule
from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.engine.sequence import BlockTable, SequenceKv, SequenceState

PROBE_LOOKUPS = 64
"""Most blocks that one probe of a waiting sequence looks up."""


@dataclass(slots=True)
class BlockChanges:
    """The blocks that the step being planned copies before it computes, in this order.

    Spills (block, frame) go to host memory, restores (frame, block) come back, copies are (source, target).
    """

    spills: list[tuple[int, int]] = field(default_factory=list)
    restores: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)


class KvCacheManager:
    """The block tables of all running sequences. Blocks that are evicted from the pool spill to `tiers`.

    `snapshots` is the number of state snapshots of recurrent layers; without them, prefixes of a model with such layers
    cannot be cached. Each snapshot must cover at least `worth` tokens more than the one before it.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool,
        tiers: TierIndex | None = None,
        rules: Sequence[Rule] = ONE_FULL,
        snapshots: int = 0,
        worth: int = 1,
    ) -> None:
        self.block_size = block_size
        self.rules = tuple(rules)
        self.changes = BlockChanges()
        self.pool = BlockPool(num_blocks, None if tiers is None else self._spill)
        self._windows = Windows(self.rules, block_size, self.pool)
        self._sliding = self._windows.groups
        rows = SnapshotRows(snapshots) if snapshots and prefix_caching else None
        self._cache = PrefixCache(self.pool, block_size, self.rules, rows) if prefix_caching else None
        self.snapshots = (
            None if rows is None or self._cache is None else SnapshotSchedule(rows, self._cache, block_size, worth)
        )
        self.sharing = InFlightSharing(self.pool, self._cache, self._windows, block_size)
        self.tiers = None if tiers is None else TieredPrefixes(tiers, self.pool, self._cache, self.rules, block_size)

    def new_kv(self, salt: str) -> SequenceKv:
        """Return the KV record of a new sequence with this cache salt."""
        return SequenceKv([] if self._cache is None else [self._cache.root(salt)])

    def begin_step(self) -> None:
        """Start a new step: admissions and writes from here on belong to it."""
        self.changes = BlockChanges()
        if self.tiers is not None:
            self.tiers.index.poll()
        if self._cache is not None:
            self._cache.begin_step()
        if self.snapshots is not None:
            self.snapshots.rows.begin_step()

    def end_step(self) -> int:
        """End the step being planned, and return the `idle_steps` of its plan."""
        pool, changes, step = self.pool, self.changes, self.pool.step
        pool.step += 1
        if not changes.spills and not changes.restores:
            return 0
        moved = [*(block for block, _ in changes.spills), *(block for _, block in changes.restores)]
        return max(0, step - 1 - max(map(pool.left, moved)))

    def resize(self, num_blocks: int, running: Sequence[SequenceState]) -> list[tuple[int, int]]:
        """Change the number of blocks to `num_blocks`, the padding block included, in this step. Return the moves
        (source, target) that follow the step's spills.

        Block numbers are updated in the tables of `running` sequences and in the merges of steps in progress. The step
        computes and restores nothing.
        """
        self.pool.step += 1
        if num_blocks > self.pool.total:
            self.pool.grow(num_blocks)
            return []
        moves = self.pool.shrink(num_blocks)
        moved = dict(moves)
        if moved:
            for sequence in running:
                sequence.kv.tables_sent = False
                for table in sequence.kv.tables:
                    table.renumber(moved)
            self.sharing.renumber(moved)
        return moves

    def admit(self, sequence: SequenceState, spare: int) -> bool:
        """Allocate the first blocks of a sequence, if `spare` blocks for each group remain; else change nothing.

        Sets `computed` to the number of tokens found in the prefix cache and the tiers. Return whether the sequence was
        admitted; False also if the step being planned saves a state snapshot that covers more of its tokens.
        """
        hit = self._match(sequence)
        if self._lacking(sequence, hit, spare) > 0:
            return False
        if self.snapshots is not None and self.snapshots.awaited(sequence, hit.tokens):
            return False
        kv = sequence.kv
        kv.published = hit.end
        start, frames = (hit, []) if self.tiers is None else self.tiers.extend(sequence, hit)
        sequence.computed = start.tokens
        self._take_over(kv, start, frames)
        missing = -(-sequence.known // self.block_size)
        for table, rule in zip(kv.tables, self.rules, strict=True):
            if isinstance(rule, Full):
                table.blocks.extend(self.pool.take() for _ in range(missing - table.end))
        if frames:
            self._restore(kv, frames)
        kv.allocated = min(table.end for table in kv.tables) * self.block_size
        self._windows.reserve(sequence, sequence.computed)
        return True

    def grow(self, sequence: SequenceState, tokens: int) -> bool:
        """Allocate blocks for the first `tokens` tokens. Return False, without allocating any, if too few are
        available.

        Blocks that are not read again are released first. Blocks reserved for other sequences are not available.
        """
        if self._sliding:
            self._windows.trim(sequence)
        size, pool, kv, missing = self.block_size, self.pool, sequence.kv, 0
        needed = -(-tokens // size)
        for table in kv.tables:
            missing += max(0, needed - table.first - len(table.blocks))
        if missing > pool.available - self._windows.reserved + kv.reserved:
            return False
        for table in kv.tables:
            for _ in range(needed - table.first - len(table.blocks)):
                table.blocks.append(pool.take())
        # After a chunk the tables are trimmed before the next one, so that the chunk's blocks are released.
        chunk = self._sliding and tokens > sequence.computed + 1
        kv.allocated = tokens if chunk else needed * size
        kv.tables_sent = False
        if self._sliding:
            self._windows.reserve(sequence, tokens)
        return True

    def chunk(self, sequence: SequenceState, most: int, spare: int) -> int:
        """Return how many tokens, from 1 to `most`, the next chunk of a prompt may have so that `spare` blocks for each
        group stay free. If they exceed `allocated`, the caller allocates their blocks with `grow`.
        """
        if not self._sliding:
            return most
        self._windows.trim(sequence)
        kv = sequence.kv
        free = self.pool.available - (self._windows.reserved - kv.reserved) - spare * len(self.rules)
        blocks = max(free, kv.reserved) // len(self._sliding)
        end = min(kv.tables[group].end for group in self._sliding) + blocks
        return max(1, min(most, end * self.block_size - sequence.computed))

    def lacking(self, sequence: SequenceState, spare: int) -> int:
        """Return the number of blocks that must become available before `admit` can succeed; 0 if enough are."""
        return max(0, self._lacking(sequence, self._match(sequence), spare))

    def growth(self, sequence: SequenceState) -> int:
        """Return how many blocks of each group to keep free for a running sequence: one, or two if its next step needs
        a new block.
        """
        return 1 + (sequence.computed >= sequence.kv.allocated)

    def given_up(self, sequence: SequenceState) -> int:
        """Return the most blocks that preempting a running sequence makes available: those in its tables (shared ones
        count too), those reserved, and those kept free for it.
        """
        held = sum(len(table.blocks) for table in sequence.kv.tables)
        return held + sequence.kv.reserved + self.growth(sequence) * len(self.rules)

    def probe(self, sequence: SequenceState, tokens: int) -> int:
        """Return how many leading tokens of a waiting sequence are cached. The search starts at `tokens`, the last
        result, and looks up at most PROBE_LOOKUPS blocks.
        """
        return 0 if self._cache is None else self._cache.probe(sequence, tokens, PROBE_LOOKUPS)

    def release(self, sequence: SequenceState) -> None:
        """Release all blocks of a sequence. Its published blocks can be found until they are reused."""
        if self.snapshots is not None:
            self.snapshots.release(sequence)
        kv = sequence.kv
        self.pool.release(_in_order(kv.tables))
        self._windows.reserved -= kv.reserved
        kv.tables = []
        sequence.kv, sequence.computed = SequenceKv(kv.hashes), 0

    def disown(self, sequence: SequenceState) -> None:
        """Remove all blocks of a sequence that ended with an error from the prefix cache and the tiers, also those that
        it shares, so that no later sequence reads them.
        """
        for table in sequence.kv.tables:
            for block in table.blocks:
                self.pool.forget(block)
        if self._cache is None:
            return
        for name in self._cache.all_names(sequence):
            found = self.pool.find(name) if self._sliding else None
            if found is not None:  # released, and idle
                self.pool.forget(found)
            if self.tiers is not None:
                self.tiers.index.forget(name)
        if self.snapshots is not None:
            self.snapshots.disown(sequence)

    def not_computed(self, plan: StepPlan, sequences: Sequence[SequenceState]) -> None:
        """Remove everything that a failed step of these sequences was to compute or save from the prefix cache and
        tiers.
        """
        size = self.block_size
        for entry, sequence in zip(plan.sequences, sequences, strict=True):
            end = (entry.start + len(entry.token_ids)) // size
            for name in () if self._cache is None else self._cache.names_between(sequence, entry.start // size, end):
                if (found := self.pool.find(name)) is not None:
                    self.pool.forget(found)
                if self.tiers is not None:
                    self.tiers.index.forget(name)
        if self.snapshots is not None:
            self.snapshots.not_saved([row for _, row in plan.snapshots], sequences)

    def forget_all(self) -> None:
        """Remove all cached blocks and snapshots from the prefix cache and the tiers."""
        self.pool.forget_all()
        if self.tiers is not None:
            self.tiers.index.forget_all()
        if self.snapshots is not None:
            self.snapshots.rows.forget_all()

    @property
    def held(self) -> int:
        """Number of blocks in use or reserved."""
        return self.pool.used + self._windows.reserved

    def _match(self, sequence: SequenceState) -> Hit:
        if self._cache is None:
            return Hit(0, [Run(0, []) for _ in self.rules], None)
        return self._cache.match(sequence)

    def _spill(self, block: int, name: bytes) -> None:
        """Spill a cached block that the pool is about to reuse to the tiers, if they have room."""
        assert self.tiers is not None
        if (frame := self.tiers.index.spill(name)) is not None:
            self.changes.spills.append((block, frame))

    def _take_over(self, kv: SequenceKv, start: Hit, frames: list[int]) -> None:
        """Give a sequence the blocks of its prefix hit. A partly used block is copied, unless it has no references."""
        pool = self.pool
        idle = [start.partial is not None and pool.is_idle(block) for block in start.partial or ()]
        # Hold found blocks first: taking blocks may spill others, which needs frames.
        for run in start.runs:
            for block in run.blocks:
                if block != PADDING_BLOCK:
                    pool.share(block)
        if self.tiers is not None:
            self.tiers.index.hold(frames)
        kv.tables = [BlockTable(run.first, run.blocks) for run in start.runs]
        if start.partial is None:
            return
        for block, own in zip(start.partial, idle, strict=True):
            if own:
                pool.share(block)
                pool.forget(block)
        for table, block, own in zip(kv.tables, start.partial, idle, strict=True):
            table.blocks.append(block if own else self._copied(block))

    def _copied(self, block: int) -> int:
        target = self.pool.take()
        self.changes.copies.append((block, target))
        return target

    def _restore(self, kv: SequenceKv, frames: Sequence[int]) -> None:
        """Replace padding blocks in the tables by new blocks that the step fills from these frames.

        Frames and blocks are paired in ascending order, so that neighbours are copied in one call. These blocks are
        taken last: `take` returns recently released ones first, which are left for the tokens to compute.
        """
        taken = sorted(self.pool.take() for _ in frames)
        targets, left = dict(zip(sorted(frames), taken, strict=True)), iter(frames)
        for table in kv.tables:
            for place, block in enumerate(table.blocks):
                if block == PADDING_BLOCK:
                    frame = next(left)
                    table.blocks[place] = targets[frame]
                    self.changes.restores.append((frame, targets[frame]))

    def _lacking(self, sequence: SequenceState, hit: Hit, spare: int) -> int:
        """Return how many blocks `admit` needs beyond the available ones: new blocks, and found ones that are idle.
        Negative if some are left over.
        """
        peaks = (peak_blocks(rule, hit.tokens, sequence.known, self.block_size) for rule in self.rules)
        # Blocks shared in a sliding-window group are counted too: their release frees nothing for this sequence.
        shared = sum(
            not self.pool.is_idle(block)
            for run, rule in zip(hit.runs, self.rules, strict=True)
            if isinstance(rule, Full)
            for block in run.blocks
        )
        return sum(peaks) - shared + spare * len(self.rules) + self._windows.reserved - self.pool.available

    def check_integrity(
        self, running: Sequence[SequenceState], merges: Sequence[Merge], frames: Sequence[int] = ()
    ) -> None:
        """Raise AssertionError if a block is leaked, shared while a sequence writes to it, or missing.

        `merges` and `frames` are held for steps in progress.
        """
        self.pool.check_integrity()
        if self.tiers is not None:
            prefetched = (frame for prefetch in self.tiers.prefetches.values() for frame in prefetch.frames)
            self.tiers.index.check_integrity([*frames, *prefetched])
        tables = [(group, table) for sequence in running for group, table in enumerate(sequence.kv.tables)]
        holders = Counter(block for _, table in tables for block in table.blocks)
        held = holders + Counter(merge.block for merge in merges)
        for block in range(1, self.pool.total + 1):
            references = self.pool.references(block)
            assert references == held[block], f"block {block}: {references} references, {held[block]} holders"
        owners = {(block, group) for group, table in tables for block in table.blocks}
        assert len(owners) == len(holders), "a block is in tables of two groups"
        self._windows.check_integrity(running)
        if self.snapshots is not None:
            self.snapshots.check_integrity(running)
        for sequence in running:
            kv = sequence.kv
            assert len(kv.tables) == len(self.rules), f"{sequence.request_id} lacks a table"
            assert not kv.tables_sent or all(t.is_sent for t in kv.tables), "the runner has an old table"
            for rule, table in zip(self.rules, kv.tables, strict=True):
                self._check_table(sequence, rule, table, holders)

    def _check_table(self, sequence: SequenceState, rule: Rule, table: BlockTable, holders: Counter[int]) -> None:
        blocks, size, who = table.blocks, self.block_size, sequence.request_id
        assert len(set(blocks)) == len(blocks), f"{who} has a block twice"
        assert table.end * size >= max(sequence.computed, sequence.kv.allocated), f"{who} lacks a block at the end"
        assert table.first <= first_block(rule, sequence.computed, size), f"{who} has released a block that it reads"
        for block in blocks[max(0, sequence.computed // size - table.first) :]:
            assert holders[block] == 1, f"block {block} is shared and {who} will write to it"
            assert not self.pool.is_named(block), f"block {block} can be found before it is full"


def _in_order(tables: Sequence[BlockTable]) -> Sequence[int]:
    """Return the blocks of all tables, sorted by their number in the sequence."""
    if len(tables) == 1:
        return tables[0].blocks
    numbered = [(number, block) for table in tables for number, block in enumerate(table.blocks, table.first)]
    return [block for _, block in sorted(numbered)]
