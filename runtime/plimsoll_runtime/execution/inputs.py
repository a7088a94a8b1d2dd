"""A step's plan as flat arrays: what the decoder and the attention backend read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_runtime.engine.plan import LAST_CHOSEN, StepPlan


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The rows of all scheduled sequences, one after the other (T tokens, S sequences).

    `token_ids`, `positions` and `slot_mapping` (where each row's key and value go: block x block_size + offset)
    are int64 [T] on the device; `query_lens` and `context_lens` (cached tokens after this step) are S integers.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    query_lens: list[int]
    context_lens: list[int]


def step_inputs(plan: StepPlan, block_size: int, device: torch.device, last_chosen: Sequence[int]) -> StepInputs:
    """Flatten a plan. No Python runs per token of a prompt: positions and slots come from repeats and ranges.

    last_chosen: by slot the token that each slot's last step chose, for the plan's LAST_CHOSEN.
    """
    query_lens = [len(s.token_ids) for s in plan.sequences]
    known = [(last_chosen[s.slot],) if s.token_ids[0] == LAST_CHOSEN else s.token_ids for s in plan.sequences]
    decodes = sum(query_lens) == len(query_lens)
    tokens, positions, mapping = (_decodes if decodes else _chunks)(plan, block_size, known)
    return StepInputs(
        token_ids=torch.from_numpy(tokens).to(device),
        positions=torch.from_numpy(positions).to(device),
        slot_mapping=torch.from_numpy(mapping).to(device),
        query_lens=query_lens,
        context_lens=[s.start + length for s, length in zip(plan.sequences, query_lens, strict=True)],
    )


_Rows = Iterable[NDArray[np.int64]]
"""Tokens, positions and cache slots of all rows."""


def _decodes(plan: StepPlan, block_size: int, token_ids: Sequence[Sequence[int]]) -> _Rows:
    """One row for each sequence: three numbers of each, and of its table only the end is read."""
    mapping = [s.block_ids[s.start // block_size] * block_size + s.start % block_size for s in plan.sequences]
    return np.array([[ids[0] for ids in token_ids], [s.start for s in plan.sequences], mapping], dtype=np.int64)


def _chunks(plan: StepPlan, block_size: int, token_ids: Sequence[Sequence[int]]) -> _Rows:
    lengths = np.array([len(ids) for ids in token_ids], dtype=np.int64)
    first_rows = np.cumsum(lengths) - lengths
    tokens = np.fromiter(chain.from_iterable(token_ids), np.int64, int(lengths.sum()))
    starts = np.array([s.start for s in plan.sequences], dtype=np.int64)
    positions = np.arange(tokens.size) + np.repeat(starts - first_rows, lengths)
    tables = [s.block_ids for s in plan.sequences]
    widths = np.array([len(t) for t in tables], dtype=np.int64)
    blocks = np.fromiter(chain.from_iterable(tables), np.int64, int(widths.sum()))
    first_blocks = np.repeat(np.cumsum(widths) - widths, lengths)
    mapping = blocks[first_blocks + positions // block_size] * block_size + positions % block_size
    return tokens, positions, mapping
