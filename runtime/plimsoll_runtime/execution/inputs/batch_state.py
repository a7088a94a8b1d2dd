"""The batch state of the runner, updated by step plans, and a step's inputs as flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import LAST_CHOSEN, ScheduledSequence, SequenceOutput, StepPlan
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables
from plimsoll_runtime.execution.inputs.block_tables import BlockTableState
from plimsoll_runtime.execution.inputs.device_state import DeviceState
from plimsoll_runtime.models.layers.device_copy import to_device


class BatchState:
    """By slot: the block `tables`, one of each group, and the token that its last step chose: `seen`.

    Where a `device` computes behind the host's back, it keeps the tokens, and the tables as well.
    """

    def __init__(self, num_slots: int, groups: int, num_blocks: int, device: DeviceState | None = None) -> None:
        self.tables = (
            [BlockTableState(num_slots, num_blocks) for _ in range(groups)] if device is None else device.tables
        )
        self.device = device
        self.seen = [0] * num_slots

    def begin(self, plan: StepPlan) -> None:
        """Have what is new with a step."""
        for slot in plan.freed_slots:
            for tables in self.tables:
                tables.clear(slot)
        if plan.moves:
            for tables in self.tables:
                tables.clear_all()
        for sequence in plan.sequences:
            for change in sequence.changes:
                self.tables[change.group].change(sequence.slot, change)

    def chose(self, slots: Sequence[int], outputs: Sequence[SequenceOutput]) -> None:
        """A step has chosen tokens for slots, or could not."""
        for slot, output in zip(slots, outputs, strict=True):
            self.seen[slot] = output.token_id or 0

    def check_integrity(self) -> None:
        """Raises AssertionError where a table is not whole, or another one on the device."""
        for tables in self.tables:
            tables.check_integrity()
        if self.device is not None:
            self.device.check_integrity()


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The rows of all sequences, one after the other, int64 [T] on the device, and where the cache has them."""

    token_ids: Tensor
    positions: Tensor
    batch: AttentionBatch


def step_inputs(plan: StepPlan, state: BatchState, block_size: int, device: torch.device) -> StepInputs:
    """Flatten a plan, with which the state has begun. No Python runs per token of a prompt, or per block of a table:
    positions and cells come from repeats and ranges, and tables are read where they are kept.

    Where a device computes behind the host's back, see StepRows.
    """
    sequences = plan.sequences
    query_lens, lengths, known = [], [], []
    for s in sequences:
        token_ids: Sequence[int] = s.token_ids
        query_lens.append(len(token_ids))
        lengths.append(s.start + len(token_ids))
        known.append((state.seen[s.slot],) if token_ids[0] == LAST_CHOSEN else token_ids)
    decodes = sum(query_lens) == len(query_lens)
    rows = (_decodes if decodes else _chunks)(sequences, known, state.tables, block_size)
    tokens, positions, *mappings = to_device(rows, device).unbind()
    longest = max(lengths)
    rest: tuple[AttentionBatch, ...] = ()
    for group in reversed(range(len(state.tables))):
        kept, contexts, begins, counts = state.tables[group], [], [], []
        firsts, all_begins, all_counts = kept.firsts, kept.begins, kept.counts
        for s, length in zip(sequences, lengths, strict=True):
            slot = s.slot
            contexts.append(length - firsts[slot] * block_size)
            begins.append(all_begins[slot])
            counts.append(all_counts[slot])
        tables = BlockTables(kept.blocks, begins, counts)
        batch = AttentionBatch(query_lens, contexts, tables, mappings[group], rest, longest)
        rest = (batch, *rest)
    return StepInputs(tokens, positions, batch)


def _decodes(
    sequences: Sequence[ScheduledSequence],
    token_ids: Sequence[Sequence[int]],
    tables: Sequence[BlockTableState],
    block_size: int,
) -> NDArray[np.int64]:
    """See `_chunks`. One row for each sequence: a few numbers of each, and of its tables only the ends are read."""
    starts = [s.start for s in sequences]
    rows = [[ids[0] for ids in token_ids], starts]
    for kept in tables:
        cells, blocks, firsts, begins = [], kept.blocks, kept.firsts, kept.begins
        for sequence in sequences:
            slot, start = sequence.slot, sequence.start
            block = blocks[begins[slot] + start // block_size - firsts[slot]]
            cells.append(block * block_size + start % block_size)
        rows.append(cells)
    return np.array(rows, dtype=np.int64)


def _chunks(
    sequences: Sequence[ScheduledSequence],
    token_ids: Sequence[Sequence[int]],
    tables: Sequence[BlockTableState],
    block_size: int,
) -> NDArray[np.int64]:
    """Tokens and positions of all rows, then their cells in the cache, group by group: [2 + groups, T]."""
    lengths = np.array([len(ids) for ids in token_ids], dtype=np.int64)
    first_rows = np.cumsum(lengths) - lengths
    tokens = np.fromiter(chain.from_iterable(token_ids), np.int64, int(lengths.sum()))
    starts = np.array([s.start for s in sequences], dtype=np.int64)
    positions = np.arange(tokens.size) + np.repeat(starts - first_rows, lengths)
    mappings = []
    for kept in tables:
        first_blocks = [kept.begins[s.slot] - kept.firsts[s.slot] for s in sequences]
        numbers = np.repeat(np.array(first_blocks, dtype=np.int64), lengths) + positions // block_size
        blocks = np.frombuffer(kept.blocks, np.int32)[numbers].astype(np.int64)
        mappings.append(blocks * block_size + positions % block_size)
    return np.stack([tokens, positions, *mappings])
