"""A step's plan as flat arrays: what the decoder and the attention backend read."""

from __future__ import annotations

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


def step_inputs(plan: StepPlan, block_size: int, device: torch.device, last_chosen: NDArray[np.int64]) -> StepInputs:
    """Flatten a plan. No Python runs per token: positions and slots come from repeats and ranges.

    last_chosen: int64 [slots], the token that each slot's last step chose, for the plan's LAST_CHOSEN.
    """
    query_lens = [len(s.token_ids) for s in plan.sequences]
    starts = [s.start for s in plan.sequences]
    lengths = np.array(query_lens, dtype=np.int64)
    first_rows = np.cumsum(lengths) - lengths
    tokens = np.fromiter(chain.from_iterable(s.token_ids for s in plan.sequences), np.int64, int(lengths.sum()))
    unseen = tokens[first_rows] == LAST_CHOSEN
    if unseen.any():
        slots = np.array([s.slot for s in plan.sequences])
        tokens[first_rows[unseen]] = last_chosen[slots[unseen]]
    positions = np.arange(tokens.size) + np.repeat(np.array(starts, dtype=np.int64) - first_rows, lengths)
    tables = [s.block_ids for s in plan.sequences]
    widths = np.array([len(t) for t in tables], dtype=np.int64)
    blocks = np.fromiter(chain.from_iterable(tables), np.int64, int(widths.sum()))
    first_blocks = np.repeat(np.cumsum(widths) - widths, lengths)
    mapping = blocks[first_blocks + positions // block_size] * block_size + positions % block_size
    return StepInputs(
        token_ids=torch.from_numpy(tokens).to(device),
        positions=torch.from_numpy(positions).to(device),
        slot_mapping=torch.from_numpy(mapping).to(device),
        query_lens=query_lens,
        context_lens=[start + length for start, length in zip(starts, query_lens, strict=True)],
    )
