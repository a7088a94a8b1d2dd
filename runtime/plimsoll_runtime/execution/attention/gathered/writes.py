"""Where a step's keys and values go."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_runtime.execution.attention.base import AttentionBatch


class CacheWrites:
    """Cells of a step's rows, and the blocks that the step begins without filling.

    Those are cleared first: what an earlier owner left in their unwritten cells is read with weight 0, and
    0 x NaN would carry a broken request's values into the next one.
    """

    def __init__(self, batch: AttentionBatch, block_size: int) -> None:
        tables = batch.block_tables
        begun = [
            tables.blocks[begin + context // block_size]
            for query, context, begin in zip(batch.query_lens, batch.context_lens, tables.begins, strict=True)
            if 0 < context % block_size <= query
        ]
        self._blocks, self._offsets = batch.cells // block_size, batch.cells % block_size
        self._begun = torch.tensor(begun, dtype=torch.int64) if begun else None

    def write(self, cache: Tensor, rows: Tensor) -> None:
        """Write `[T, kv_heads, D]` into a cache `[kv_heads, num_blocks, block_size, D]`."""
        if self._begun is not None:
            cache.index_fill_(1, self._begun, 0)
        cache[:, self._blocks, self._offsets] = rows.transpose(0, 1)
