"""A step's plan as flat arrays: what the decoder and the attention backend read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_runtime.engine.plan import LAST_CHOSEN, StepPlan
from plimsoll_runtime.execution.attention.base import AttentionBatch


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The rows of all sequences, one after the other, int64 [T] on the device, and where the cache has them."""

    token_ids: Tensor
    positions: Tensor
    batch: AttentionBatch


def step_inputs(plan: StepPlan, block_size: int, device: torch.device, last_chosen: Sequence[int]) -> StepInputs:
    """Flatten a plan. No Python runs per token of a prompt: positions and cells come from repeats and ranges.

    last_chosen: by slot the token that each slot's last step chose, for the plan's LAST_CHOSEN.
    """
    sequences = plan.sequences
    query_lens = [len(s.token_ids) for s in sequences]
    known = [(last_chosen[s.slot],) if s.token_ids[0] == LAST_CHOSEN else s.token_ids for s in sequences]
    decodes = sum(query_lens) == len(query_lens)
    tokens, positions, *mappings = (_decodes if decodes else _chunks)(plan, block_size, known)
    lengths = [s.start + rows for s, rows in zip(sequences, query_lens, strict=True)]
    longest = max(lengths)
    rest: tuple[AttentionBatch, ...] = ()
    for group in reversed(range(len(mappings))):
        contexts, tables = [], []
        for s, length in zip(sequences, lengths, strict=True):
            table = s.tables[group]
            contexts.append(length - table.first * block_size)
            tables.append(table.blocks)
        cells = torch.from_numpy(mappings[group]).to(device)
        batch = AttentionBatch(query_lens, contexts, tables, cells, rest, longest)
        rest = (batch, *rest)
    return StepInputs(torch.from_numpy(tokens).to(device), torch.from_numpy(positions).to(device), batch)


_Rows = NDArray[np.int64] | Sequence[NDArray[np.int64]]
"""Tokens and positions of all rows, then their cells in the cache, group by group."""


def _decodes(plan: StepPlan, block_size: int, token_ids: Sequence[Sequence[int]]) -> _Rows:
    """One row for each sequence: a few numbers of each, and of its tables only the ends are read."""
    starts = [s.start for s in plan.sequences]
    rows = [[ids[0] for ids in token_ids], starts]
    for group in range(len(plan.sequences[0].tables)):
        cells = []
        for sequence in plan.sequences:
            table, start = sequence.tables[group], sequence.start
            cells.append(table.blocks[start // block_size - table.first] * block_size + start % block_size)
        rows.append(cells)
    return np.array(rows, dtype=np.int64)


def _chunks(plan: StepPlan, block_size: int, token_ids: Sequence[Sequence[int]]) -> _Rows:
    lengths = np.array([len(ids) for ids in token_ids], dtype=np.int64)
    first_rows = np.cumsum(lengths) - lengths
    tokens = np.fromiter(chain.from_iterable(token_ids), np.int64, int(lengths.sum()))
    starts = np.array([s.start for s in plan.sequences], dtype=np.int64)
    positions = np.arange(tokens.size) + np.repeat(starts - first_rows, lengths)
    mappings = []
    for group in range(len(plan.sequences[0].tables)):
        tables = [s.tables[group] for s in plan.sequences]
        widths = np.array([len(t.blocks) for t in tables], dtype=np.int64)
        blocks = np.fromiter(chain.from_iterable(t.blocks for t in tables), np.int64, int(widths.sum()))
        given_back = np.array([t.first for t in tables], dtype=np.int64)
        begin = np.repeat(np.cumsum(widths) - widths - given_back, lengths)
        mappings.append(blocks[begin + positions // block_size] * block_size + positions % block_size)
    return [tokens, positions, *mappings]
