"""Plans shared prefixes from step to step, and keeps the plan on the device. Compares whole block tables only if the
last plan no longer holds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from plimsoll_kernels.paged_attention.prefix.tables import PrefixTables
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.shared_prefix.grouping import (
    MOST_GROUPS,
    SharedPrefix,
    Worth,
    fewest_blocks,
    shared_prefixes,
)
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.device_copy import to_device

Ints = NDArray[np.int64]


class TableRows(NamedTuple):
    """The S sequences of a step in a cache group, int64 [S] each: number of rows, context tokens (this step's rows
    included), and the index in `blocks` (int32 [N]) at which the table begins.
    """

    query_lens: Ints
    context_lens: Ints
    begins: Ints
    blocks: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class PrefixPlan:
    """The prefixes that the decodes of a step with S sequences share. Unchanged plans stay the same object."""

    groups: tuple[SharedPrefix, ...]
    sequences: int
    block_size: int

    def numbers(self, size: int) -> Ints:
        """Return the plan as PrefixTables reads it, padded to `size` sequences: [2 x size + MOST_GROUPS + 1]."""
        numbers = np.zeros(2 * size + MOST_GROUPS + 1, dtype=np.int64)
        shared, starts, listed = numbers[size : 2 * size], numbers[2 * size :], 0
        for number, group in enumerate(self.groups):
            members = np.array(group.members)
            numbers[listed : listed + members.size] = members
            shared[members] = group.blocks * self.block_size
            listed += members.size
            starts[number + 1 :] = listed
        return numbers

    def tables(self, device: torch.device) -> PrefixTables:
        """Return the plan on a device, sent in one copy."""
        return PrefixTables.of(to_device(self.numbers(self.sequences), device).to(torch.int32), self.sequences)


class PrefixPlanner:
    """Plans the shared prefixes of one cache group.

    To see whether a plan still holds, it compares a few numbers of each sequence: where its table begins, its last
    shared block, its first block that is not shared, and the last of the blocks that a prefix must have. A block is in
    two tables only if it has the same tokens in both and all blocks before it are the same as well
    (`engine.kv.prefix_cache` hashes it so). So while all members have the last block in common, they have all blocks
    before it in common.
    """

    def __init__(self, worth: Worth, block_size: int) -> None:
        self._worth = worth
        self._block_size = block_size
        self._watched: _Watched | None = None

    def plan(self, rows: TableRows) -> PrefixPlan:
        """Return the plan of a step: the prefixes that its decodes share. Chunks of prompts share nothing."""
        if self._watched is None or not self._watched.holds(rows):
            self._watched = self._looked_at(rows)
        return self._watched.plan

    def _looked_at(self, rows: TableRows) -> _Watched:
        size, fewest, seen = self._block_size, fewest_blocks(self._block_size), self._worth.seen
        before = (rows.context_lens - 1) // size
        may = (rows.query_lens == 1) & (before >= fewest)
        if seen is not None:
            may &= rows.context_lens <= seen
        numbers = np.flatnonzero(may)
        first = rows.blocks[rows.begins[numbers] + fewest - 1].tolist()
        counts = Counter(first)
        alike = [number for number, block in zip(numbers.tolist(), first, strict=True) if counts[block] > 1]
        tables = [rows.blocks[rows.begins[i] :][: before[i]] for i in alike]
        groups = shared_prefixes(tables, alike, size, self._worth) if alike else ()
        plan = PrefixPlan(groups, rows.begins.size, size)
        return _Watched.of(plan, rows, numbers, fewest, seen)


@dataclass(frozen=True)
class _Watched:
    """A plan, and the inputs that must be unchanged for it to hold.

    query_lens, begins: int64 [S] as in TableRows. shared: int64 [S], the tokens that each sequence shares, 0 for none.
    places, blocks: [K], indices into the blocks of TableRows, and the blocks there. seen: as in Worth.
    """

    plan: PrefixPlan
    query_lens: Ints
    begins: Ints
    shared: Ints
    places: Ints
    blocks: NDArray[np.int32]
    seen: int | None

    @classmethod
    def of(cls, plan: PrefixPlan, rows: TableRows, numbers: Ints, fewest: int, seen: int | None) -> _Watched:
        places, shared = [rows.begins[numbers] + fewest - 1], np.zeros_like(rows.begins)
        for group in plan.groups:
            members = np.array(group.members)
            shared[members] = group.blocks * plan.block_size
            places += [rows.begins[members] + group.blocks - 1, rows.begins[members] + group.blocks]
        flat = np.concatenate(places)
        return cls(plan, rows.query_lens.copy(), rows.begins.copy(), shared, flat, rows.blocks[flat], seen)

    def holds(self, rows: TableRows) -> bool:
        """Return whether comparing the tables again would give the same plan."""
        return bool(
            np.array_equal(self.query_lens, rows.query_lens)
            and np.array_equal(self.begins, rows.begins)
            and self.places.max(initial=0) < rows.blocks.size
            and np.array_equal(self.blocks, rows.blocks[self.places])
            and (rows.context_lens > self.shared).all()
            and (self.seen is None or (rows.context_lens[self.shared > 0] <= self.seen).all())
        )


@runtime_checkable
class SharingBackend(Protocol):
    """An attention backend that reads shared prefixes of decodes once."""

    prefixes: StepPrefixes


class StepPrefixes:
    """Plans shared prefixes of steps over a cache. `planners`: one for each cache group; None if its layers never
    share.
    """

    def __init__(self, cache: KvCache) -> None:
        worths = [Worth.of([cache.shapes[layer] for layer in group], cache.dtype.itemsize) for group in cache.groups]
        self.planners = tuple(None if worth is None else PrefixPlanner(worth, cache.block_size) for worth in worths)
        self._device = cache.device
        self._sent: list[tuple[PrefixPlan, PrefixTables] | None] = [None] * len(worths)

    @property
    def any(self) -> bool:
        """Whether decodes may share prefixes in any cache group."""
        return any(planner is not None for planner in self.planners)

    def of(self, batch: AttentionBatch) -> list[PrefixTables | None]:
        """Return the shared prefixes in each cache group; None for a group without."""
        return [self._of(number, group) for number, group in enumerate(batch.groups)]

    def _of(self, number: int, group: AttentionBatch) -> PrefixTables | None:
        planner, last = self.planners[number], self._sent[number]
        if planner is None or len(group.query_lens) < 2:
            return None
        plan = planner.plan(_rows(group))
        if not plan.groups:
            return None
        if last is None or last[0] is not plan:
            last = self._sent[number] = (plan, plan.tables(self._device))
        return last[1]


def _rows(group: AttentionBatch) -> TableRows:
    parts = (group.query_lens, group.context_lens, group.block_tables.begins)
    query_lens, context_lens, begins = (np.array(part, dtype=np.int64) for part in parts)
    return TableRows(query_lens, context_lens, begins, np.frombuffer(group.block_tables.blocks, np.int32))
