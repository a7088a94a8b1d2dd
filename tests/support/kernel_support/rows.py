"""A step's tokens, positions and batch as the rows that a runner makes of a plan."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import TableChange
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.inputs.device_state import DeviceState, columns_of
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.kv.cache import KvCache


def state_of(cache: KvCache, slots: int, longest: int) -> DeviceState:
    """Return the state of `slots` slots for sequences of at most `longest` tokens."""
    columns = columns_of(longest, cache.block_size)
    return DeviceState(slots, len(cache.groups), cache.num_blocks, columns, cache.device)


def rows_of(
    state: DeviceState, block_size: int, token_ids: Tensor, positions: Tensor, batch: AttentionBatch
) -> StepRows:
    """Start a step and return the rows of sequences in the first slots, with new block tables."""
    state.upload_buffer.start_step()
    lengths = np.array(batch.query_lens, dtype=np.int64)
    ends = positions.numpy()[np.cumsum(lengths) - 1] + 1
    for number, group in enumerate(batch.groups):
        tables = group.block_tables
        parts = zip(ends.tolist(), group.context_lens, tables.begins, tables.counts, strict=True)
        for slot, (end, context, begin, count) in enumerate(parts):
            first = (end - context) // block_size
            blocks = list(tables.blocks[begin : begin + count])
            state.tables[number].change(slot, TableChange(number, first, first, blocks))
    nobody = np.full(len(token_ids), state.nobody, dtype=np.int64)
    slots = np.arange(len(lengths), dtype=np.int64)
    return StepRows(state, block_size, slots, ends - lengths, lengths, token_ids.to(torch.int64).numpy(), nobody)
