"""A step's plan as flat arrays: what the decoder and the attention backend read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_runtime.engine.plan import ScheduledSequence, StepPlan
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.block_tables import BlockTables
from plimsoll_runtime.execution.batch_state import BatchState
from plimsoll_runtime.execution.kept_tables import KeptTables


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The rows of all sequences, one after the other, int64 [T] on the device, and where the cache has them."""

    token_ids: Tensor
    positions: Tensor
    batch: AttentionBatch


def step_inputs(plan: StepPlan, state: BatchState, block_size: int, device: torch.device) -> StepInputs:
    """Flatten a plan, with which the state has begun. No Python runs per token of a prompt, or per block of a table:
    positions and cells come from repeats and ranges, and tables are read where they are kept.
    """
    sequences = plan.sequences
    query_lens = [len(s.token_ids) for s in sequences]
    known = state.tokens(sequences)
    decodes = sum(query_lens) == len(query_lens)
    tokens, positions, *mappings = (_decodes if decodes else _chunks)(sequences, known, state.tables, block_size)
    lengths = [s.start + rows for s, rows in zip(sequences, query_lens, strict=True)]
    longest = max(lengths)
    rest: tuple[AttentionBatch, ...] = ()
    for kept, mapping in zip(reversed(state.tables), reversed(mappings), strict=True):
        contexts, begins, counts = [], [], []
        for s, length in zip(sequences, lengths, strict=True):
            contexts.append(length - kept.firsts[s.slot] * block_size)
            begins.append(kept.begins[s.slot])
            counts.append(kept.counts[s.slot])
        cells = torch.from_numpy(mapping).to(device)
        batch = AttentionBatch(query_lens, contexts, BlockTables(kept.blocks, begins, counts), cells, rest, longest)
        rest = (batch, *rest)
    return StepInputs(torch.from_numpy(tokens).to(device), torch.from_numpy(positions).to(device), batch)


_Rows = NDArray[np.int64] | Sequence[NDArray[np.int64]]
"""Tokens and positions of all rows, then their cells in the cache, group by group."""


def _decodes(
    sequences: Sequence[ScheduledSequence],
    token_ids: Sequence[Sequence[int]],
    tables: Sequence[KeptTables],
    block_size: int,
) -> _Rows:
    """One row for each sequence: a few numbers of each, and of its tables only the ends are read."""
    starts = [s.start for s in sequences]
    rows = [[ids[0] for ids in token_ids], starts]
    for kept in tables:
        cells = []
        for sequence in sequences:
            slot, start = sequence.slot, sequence.start
            number = start // block_size - kept.firsts[slot]
            cells.append(kept.blocks[kept.begins[slot] + number] * block_size + start % block_size)
        rows.append(cells)
    return np.array(rows, dtype=np.int64)


def _chunks(
    sequences: Sequence[ScheduledSequence],
    token_ids: Sequence[Sequence[int]],
    tables: Sequence[KeptTables],
    block_size: int,
) -> _Rows:
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
    return [tokens, positions, *mappings]
