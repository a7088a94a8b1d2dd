"""A step's sequences as flat arrays, for backends in torch and for Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.base import AttentionBatch, gathered
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.device_copy import to_device
from plimsoll_runtime.models.spec.attention import AttentionShape

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepTables:
    """The S sequences of a step as int64 arrays: number of rows, context tokens (this step's rows included), index of
    the first row, and where the sequence's blocks are in `blocks`.

    Sequence i's blocks are `blocks[first_blocks[i] :][: num_blocks[i]]`, int32, as many as its context needs.
    """

    query_lens: Ints
    context_lens: Ints
    first_rows: Ints
    num_blocks: Ints
    first_blocks: Ints
    blocks: NDArray[np.int32]


def first_seen(shape: AttentionShape, position: Ints) -> Ints:
    """Return the first position that rows at these positions see (vectorised `AttentionShape.first_seen`)."""
    first = np.zeros_like(position)
    if shape.window is not None:
        first = np.maximum(first, position - shape.window + 1)
    if shape.chunk is not None:
        first = np.maximum(first, position // shape.chunk * shape.chunk)
    return first


def alibi_bias(shape: AttentionShape, token: Ints, position: Ints) -> Tensor | None:
    """Return ALiBi's bias of scores: tokens [S, 1, W], rows at positions [S, Q, 1] -> [S, kv_heads, group, Q or 1, W].

    None without ALiBi.
    """
    if shape.alibi is None:
        return None
    slopes = torch.tensor(shape.alibi.slopes).view(1, shape.kv_heads, -1, 1, 1)
    if shape.alibi.coarse:
        return shape.scale * (slopes.bfloat16() * torch.from_numpy(token)[:, None, None]).float()
    return slopes * torch.from_numpy(token - position)[:, None, None]


def step_tables(batch: AttentionBatch, block_size: int) -> StepTables:
    """Return a batch as arrays, without copying its block tables. Raises ValueError if a table is too short."""
    query_lens = np.array(batch.query_lens, dtype=np.int64)
    context_lens = np.array(batch.context_lens, dtype=np.int64)
    needed = -(-context_lens // block_size)
    widths = np.array(batch.block_tables.counts, dtype=np.int64)
    if (widths < needed).any():
        short = int(np.argmax(widths < needed))
        raise ValueError(
            f"sequence {short} has {context_lens[short]} tokens but {widths[short]} blocks of {block_size}"
        )
    return StepTables(
        query_lens=query_lens,
        context_lens=context_lens,
        first_rows=np.cumsum(query_lens) - query_lens,
        num_blocks=needed,
        first_blocks=np.array(batch.block_tables.begins, dtype=np.int64),
        blocks=np.frombuffer(batch.block_tables.blocks, np.int32),
    )


def paged_batch(batch: AttentionBatch, cache: KvCache) -> PagedBatch:
    """Return lengths and block tables on the cache's device; shorter tables are padded with arbitrary valid blocks."""
    tables = step_tables(batch, cache.block_size)
    rows, width = int(tables.query_lens.sum()), int(tables.num_blocks.max())
    if (there := batch.block_tables.there) is not None:
        starts, contexts, begins = there.query_starts, there.context_lens, there.begins
    else:
        numbers = np.concatenate([tables.first_rows, [rows], tables.context_lens, tables.first_blocks])
        # The first of the three parts is the longer one, with one number more.
        starts, contexts, begins = to_device(numbers, cache.device).tensor_split(3)
    return PagedBatch(
        query_starts=starts.to(torch.int32),
        context_lens=contexts.to(torch.int32),
        block_tables=gathered(batch.block_tables.on(cache.device), begins, width),
        max_query_len=int(tables.query_lens.max()),
        max_context_len=int(tables.context_lens.max()),
        decodes=int((tables.query_lens == 1).sum()),
    )
