"""The batch state of a device that the host waits for, and a step's inputs from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import LAST_CHOSEN, ScheduledSequence, SequenceOutput, StepPlan
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables
from plimsoll_runtime.execution.inputs.block_tables import BlockTableState
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.layers.device_copy import to_device


class SlotTables:
    """The block tables of all slots, by cache group. A step's plan contains their changes."""

    def __init__(self, tables: Sequence[BlockTableState]) -> None:
        self.tables = tables

    def begin(self, plan: StepPlan) -> None:
        """Apply the changes of a plan, before its step is computed."""
        for slot in plan.freed_slots:
            for tables in self.tables:
                tables.clear(slot)
        if plan.moves:
            for tables in self.tables:
                tables.clear_all()
        for sequence in plan.sequences:
            for change in sequence.changes:
                self.tables[change.group].change(sequence.slot, change)

    def check_integrity(self) -> None:
        """Raise AssertionError if a table leaves its row or has an invalid block."""
        for tables in self.tables:
            tables.check_integrity()


class BatchState(SlotTables):
    """Block tables, and for each slot the token that its last step sampled: `last_tokens`."""

    def __init__(self, num_slots: int, groups: int, num_blocks: int) -> None:
        super().__init__([BlockTableState(num_slots, num_blocks) for _ in range(groups)])
        self.last_tokens = [0] * num_slots

    def record(self, slots: Sequence[int], outputs: Sequence[SequenceOutput]) -> None:
        """Store the tokens that a step sampled for slots; 0 if there is none."""
        for slot, output in zip(slots, outputs, strict=True):
            self.last_tokens[slot] = output.token_id or 0


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of a step. `token_ids`, `positions`: int64 [T] on the device, of the rows of all sequences in order.

    `batch`: the sequences in the KV cache, for attention. `slots`: one for each sequence.
    """

    token_ids: Tensor
    positions: Tensor
    batch: AttentionBatch
    slots: Sequence[int] = ()


class SlotStates:
    """Runs a decoder over the recurrent states of a step's sequences.

    This base class has no states: KV blocks contain everything that is kept of a sequence.
    """

    recurrent: ClassVar[bool] = False
    """Whether a sequence has state outside its blocks."""

    def compute(self, decoder: Decoder, inputs: StepInputs, attention: Attention) -> Tensor:
        """Return hidden states `[T, hidden]` of a step. States advance when the pass is complete, so a failed one may
        be repeated.
        """
        return decoder(inputs.token_ids, inputs.positions, attention)

    def compute_rows(
        self, decoder: Decoder, token_ids: Tensor, positions: Tensor, attention: Attention, slots: Tensor
    ) -> Tensor:
        """Return hidden states `[S, hidden]` of one row of each sequence, whose slots int64 [S] are on the device: for
        CUDA graphs.
        """
        return decoder(token_ids, positions, attention)

    def free(self, slots: Iterable[int]) -> None:
        """Free the states of these slots."""

    def resume(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy snapshots, numbered from 1 on, to slots: (snapshot, slot)."""
        raise NotImplementedError(f"{type(self).__name__} does not support resuming from snapshots")

    def take_snapshots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the states of slots to snapshots: (slot, snapshot)."""
        raise NotImplementedError(f"{type(self).__name__} does not support taking snapshots")


NO_STATES = SlotStates()


def padding_inputs(rows: Sequence[tuple[int, int]], cache: KvCache) -> StepInputs:
    """Return inputs of sequences with these (rows, context tokens), in the first slots. All tokens are 0, and the block
    tables have only the padding block.
    """
    counts, contexts = [count for count, _ in rows], [context for _, context in rows]
    zeros = torch.zeros(sum(counts), dtype=torch.int64, device=cache.device)
    positions = torch.cat([torch.arange(context - count, context) for count, context in rows]).to(cache.device)
    tables = BlockTables.of([[0] * -(-context // cache.block_size) for context in contexts])
    groups: tuple[AttentionBatch, ...] = ()
    for _ in cache.groups:
        groups = (AttentionBatch(counts, contexts, tables, zeros, groups), *groups)
    return StepInputs(zeros, positions, groups[0], range(len(rows)))


CPU = torch.device("cpu")


def step_inputs(plan: StepPlan, state: BatchState, block_size: int, device: torch.device = CPU) -> StepInputs:
    """Return the inputs of a plan whose changes `state` has applied, as tensors on `device`.

    No Python runs per token of a prompt or per block of a table: positions and cells come from repeats and ranges, and
    tables are read in place.
    """
    sequences = plan.sequences
    slots, query_lens, lengths, known = [], [], [], []
    for s in sequences:
        token_ids: Sequence[int] = s.token_ids
        slots.append(s.slot)
        query_lens.append(len(token_ids))
        lengths.append(s.start + len(token_ids))
        known.append((state.last_tokens[s.slot],) if token_ids[0] == LAST_CHOSEN else token_ids)
    decodes = sum(query_lens) == len(query_lens)
    rows = (_decodes if decodes else _chunks)(sequences, known, state.tables, block_size)
    tokens, positions, *mappings = to_device(rows, device).unbind()
    longest = max(lengths)
    rest: tuple[AttentionBatch, ...] = ()
    for group in reversed(range(len(state.tables))):
        kept, contexts, begins, counts = state.tables[group], [], [], []
        firsts, all_begins, all_counts = kept.firsts, kept.begins, kept.counts
        for slot, length in zip(slots, lengths, strict=True):
            contexts.append(length - firsts[slot] * block_size)
            begins.append(all_begins[slot])
            counts.append(all_counts[slot])
        tables = BlockTables(kept.blocks, begins, counts)
        batch = AttentionBatch(query_lens, contexts, tables, mappings[group], rest, longest)
        rest = (batch, *rest)
    return StepInputs(tokens, positions, batch, slots)


def _decodes(
    sequences: Sequence[ScheduledSequence],
    token_ids: Sequence[Sequence[int]],
    tables: Sequence[BlockTableState],
    block_size: int,
) -> NDArray[np.int64]:
    """Return the result of `_chunks` for sequences of one row each, reading only a few numbers of each sequence."""
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
    """Return tokens and positions of all rows, then their cells in each cache group: int64 [2 + groups, T]."""
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
