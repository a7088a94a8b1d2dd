"""Where a step's keys and values go."""

from __future__ import annotations

from functools import cached_property

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
        self._cells = batch.cells
        self._block_size = block_size
        self._begun = torch.tensor(begun, dtype=torch.int64) if begun else None

    def write(self, cache: Tensor, rows: Tensor) -> None:
        """Write `[T, kv_heads, D]` into a cache `[kv_heads, num_blocks, block_size, D]`."""
        if self._begun is not None:
            cache.index_fill_(1, self._begun, 0)
        if cache.is_contiguous():
            cache.flatten(1, 2).index_copy_(1, self._cells, rows.transpose(0, 1))
        else:
            blocks, offsets = self._places
            cache[:, blocks, offsets] = rows.transpose(0, 1)

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """The block of each row, and its offset there: only views of a shared memory are written to by these."""
        return self._cells // self._block_size, self._cells % self._block_size
