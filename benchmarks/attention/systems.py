"""The measured systems: Plimsoll's backend over a paged cache, and torch's SDPA over dense keys and values, one
sequence at a time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from attention.cases import Case
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables
from plimsoll_runtime.execution.attention.capabilities import Target
from plimsoll_runtime.execution.attention.selection import select
from plimsoll_runtime.execution.kv.cache import KvCache

LAYERS = 12
BLOCK_SIZE = 16
CPU = torch.device("cpu")


def paged(case: Case, dtype: torch.dtype) -> tuple[Callable[[], object], Callable[[], None]]:
    """Return two functions: one prepares the step's attention, the other runs it in all layers. Each layer has a cache
    of its own, and the blocks are scattered over the caches.
    """
    needed = [-(-context // BLOCK_SIZE) for _, context in case.lengths]
    free = list(range(1, sum(needed) + 1))
    random.Random(0).shuffle(free)
    tables = [[free.pop() for _ in range(count)] for count in needed]
    chosen = select("auto", Target(CPU, dtype, [case.shape] * LAYERS, BLOCK_SIZE))
    cache = KvCache([case.shape] * LAYERS, sum(needed) + 1, BLOCK_SIZE, dtype, CPU)
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_()
    cells = [
        table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
        for (rows, context), table in zip(case.lengths, tables, strict=True)
        for p in range(context - rows, context)
    ]
    batch = AttentionBatch(
        query_lens=[rows for rows, _ in case.lengths],
        context_lens=[context for _, context in case.lengths],
        block_tables=BlockTables.of(tables),
        cells=torch.tensor(cells),
    )
    backend = chosen(cache)
    attention = backend.begin(batch)
    query, key, value = (
        torch.randn(len(cells), heads, case.shape.head_dim).to(dtype)
        for heads in (case.shape.heads, case.shape.kv_heads, case.shape.kv_heads)
    )

    def layers() -> None:
        for layer in range(LAYERS):
            attention(layer, query, key, value)

    return lambda: backend.begin(batch), layers


def dense(case: Case, dtype: torch.dtype) -> Callable[[], None]:
    """Return a function that runs SDPA in all layers in its best case: nothing gathered or written, no padding, and for
    a decode the query heads folded into rows.
    """
    shape = case.shape
    group = shape.heads // shape.kv_heads

    def rows_of(rows: int, context: int) -> Callable[[], Tensor]:
        tokens = context if shape.window is None else min(context, rows + shape.window - 1)
        query = torch.randn(rows, shape.kv_heads, group, shape.head_dim).to(dtype)
        key, value = (torch.randn(shape.kv_heads, tokens, shape.head_dim).to(dtype) for _ in range(2))
        if rows == 1:
            folded = query[0][None]
            return lambda: functional.scaled_dot_product_attention(folded, key[None], value[None], scale=shape.scale)
        spread = query.permute(1, 2, 0, 3)
        keys, values = (x[:, None].expand(-1, group, -1, -1) for x in (key, value))
        if tokens == rows and shape.window is None:
            return lambda: functional.scaled_dot_product_attention(
                spread, keys, values, is_causal=True, scale=shape.scale
            )
        position, token = torch.arange(tokens - rows, tokens)[:, None], torch.arange(tokens)
        hidden = (token > position) | (token <= position - (shape.window or tokens))
        mask = torch.zeros(rows, tokens, dtype=dtype).masked_fill_(hidden, -math.inf)
        return lambda: functional.scaled_dot_product_attention(spread, keys, values, attn_mask=mask, scale=shape.scale)

    calls = [rows_of(rows, context) for _ in range(LAYERS) for rows, context in case.lengths]

    def layers() -> None:
        for call in calls:
            call()

    return layers
