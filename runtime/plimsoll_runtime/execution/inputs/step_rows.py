"""A step's rows as arrays, for a device that gets all of them in one copy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plimsoll_runtime.engine.protocol.plan import LAST_CHOSEN, StepPlan
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables, OnDevice
from plimsoll_runtime.execution.inputs.batch_state import StepInputs
from plimsoll_runtime.execution.inputs.block_tables import DeviceBlockTables
from plimsoll_runtime.execution.inputs.device_state import DeviceState

Ints = NDArray[np.int64]


class GroupRows(NamedTuple):
    """S sequences in a cache group; all but `kept` are int64 [S].

    begins: the index of each table in the blocks of `kept`. firsts: the number of the first block that it still has.
    counts: its number of blocks. contexts: the tokens in these blocks, this step's included.
    """

    kept: DeviceBlockTables
    begins: Ints
    firsts: Ints
    counts: Ints
    contexts: Ints


@dataclass(frozen=True)
class StepRows:
    """The S sequences of a plan, T rows in all. `state` has applied the plan.

    slots, starts, lengths: int64 [S], the slot, first position and number of rows of each sequence.
    known, sources: int64 [T]: see DeviceState.filled.
    """

    state: DeviceState
    block_size: int
    slots: Ints
    starts: Ints
    lengths: Ints
    known: Ints
    sources: Ints

    @classmethod
    def of(cls, plan: StepPlan, state: DeviceState, block_size: int) -> StepRows:
        """Return the rows of a plan."""
        sequences = plan.sequences
        token_ids = [s.token_ids for s in sequences]
        lengths = np.array([len(ids) for ids in token_ids], dtype=np.int64)
        slots = np.array([s.slot for s in sequences], dtype=np.int64)
        starts = np.array([s.start for s in sequences], dtype=np.int64)
        known = np.fromiter(chain.from_iterable(token_ids), np.int64, int(lengths.sum()))
        unseen = known == LAST_CHOSEN
        of_rows = slots if known.size == slots.size else np.repeat(slots, lengths)
        sources = np.where(unseen, of_rows, state.nobody)
        known[unseen] = 0
        return cls(state, block_size, slots, starts, lengths, known, sources)

    @property
    def decodes(self) -> bool:
        """Whether each sequence has one row."""
        return self.known.size == self.slots.size

    @cached_property
    def ends(self) -> Ints:
        """int64 [S], the tokens of each sequence after this step."""
        return self.starts + self.lengths

    @cached_property
    def longest(self) -> int:
        """The tokens of the longest sequence after this step."""
        return int(self.ends.max())

    @cached_property
    def last_rows(self) -> Ints:
        """int64 [S], the index of each sequence's last row."""
        ends: Ints = np.cumsum(self.lengths)
        return ends - 1

    @cached_property
    def positions(self) -> Ints:
        """int64 [T], the position of each row."""
        if self.decodes:
            return self.starts
        first_rows = self.last_rows + 1 - self.lengths
        positions: Ints = np.arange(self.known.size) + np.repeat(self.starts - first_rows, self.lengths)
        return positions

    @cached_property
    def groups(self) -> list[GroupRows]:
        """The sequences in each cache group. Raises ValueError if a table has too few blocks."""
        found = []
        for kept in self.state.tables:
            begins, firsts, counts = (_at(values, self.slots) for values in (kept.begins, kept.firsts, kept.counts))
            contexts = self.ends - firsts * self.block_size
            if (short := counts * self.block_size < contexts).any():
                which = int(np.argmax(short))
                raise ValueError(
                    f"a sequence has {contexts[which]} tokens but {counts[which]} blocks of {self.block_size}"
                )
            found.append(GroupRows(kept, begins, firsts, counts, contexts))
        return found

    def check(self) -> None:
        """Raise ValueError if a table has too few blocks."""
        _ = self.groups

    def inputs(self, width: int | None = None) -> StepInputs:
        """Send the rows and return the step's inputs, padded to `width` rows with token 0 at position 0; None: not
        padded.
        """
        state, rows, width = self.state, self.known.size, width or self.known.size
        flat = np.zeros((3 + len(self.groups), width), dtype=np.int64)
        flat[1] = state.nobody
        flat[:3, :rows] = self.known, self.sources, self.positions
        for number, group in enumerate(self.groups):
            flat[3 + number, :rows] = self._cells(group)
        starts = np.append(self.last_rows + 1 - self.lengths, rows)
        tables = np.concatenate([starts, *(part for g in self.groups for part in (g.contexts, g.begins))])
        buffer = state.upload_buffer
        of_rows, of_sequences = buffer.add(flat), buffer.add(tables)
        table_changes = [tables.add_to(buffer) for tables in state.tables]
        buffer.send()
        for kept, changes in zip(state.tables, table_changes, strict=True):
            kept.receive(changes)
        known, sources, positions, *cells = of_rows.on_device.view(flat.shape).unbind()
        sequences = self.slots.size
        query_starts, of_groups = of_sequences.on_device.tensor_split([sequences + 1])
        numbers = of_groups.view(len(self.groups), 2, sequences)
        lengths, batch = self.lengths.tolist(), tuple[AttentionBatch, ...]()
        for number, group in reversed(list(enumerate(self.groups))):
            there = OnDevice(group.kept.on_device, query_starts, *numbers[number].unbind())
            own = BlockTables(group.kept.blocks, group.begins.tolist(), group.counts.tolist(), there)
            mapping = cells[number][:rows]
            batch = (AttentionBatch(lengths, group.contexts.tolist(), own, mapping, batch, self.longest), *batch)
        return StepInputs(state.filled(known, sources), positions, batch[0], self.slots.tolist())

    def _cells(self, group: GroupRows) -> Ints:
        """Return the cells of the rows in a cache group, int64 [T]."""
        first_blocks = group.begins - group.firsts
        if not self.decodes:
            first_blocks = np.repeat(first_blocks, self.lengths)
        blocks, offsets = np.divmod(self.positions, self.block_size)
        found = np.frombuffer(group.kept.blocks, np.int32)[first_blocks + blocks]
        cells: Ints = found.astype(np.int64) * self.block_size + offsets
        return cells


def _at(values: Any, slots: Ints) -> Ints:
    """Return the entries of `values` (int64, by slot) for these slots."""
    found: Ints = np.frombuffer(values, np.int64)[slots]
    return found
