"""All tiles of a step for one attention shape."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.execution.attention.gathered.products import Scratch, compute_dtype
from plimsoll_runtime.execution.attention.gathered.segments import TilePlan
from plimsoll_runtime.execution.attention.gathered.tile import Single, Tile, TileIndex, tile_of
from plimsoll_runtime.execution.attention.tables import StepTables
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape


class StepTiles:
    """Puts the step's rows in the tiles' order, calls the tiles, and puts the results back.

    Rows that stand in a tile twice (padding) are computed from the same numbers: either copy is right.
    """

    def __init__(
        self, plans: list[TilePlan], tables: StepTables, shape: AttentionShape, cache: KvCache, scratch: Scratch
    ) -> None:
        indices = [TileIndex(plan, tables, shape, cache.block_size) for plan in plans]
        rows = np.concatenate([index.rows.reshape(-1) for index in indices])
        size = (len(rows), shape.heads, shape.head_dim)
        dtype = compute_dtype(cache.dtype)
        self._cache = cache
        self._rows = torch.from_numpy(rows)
        self._query, self._out = (scratch.take(name, size, dtype) for name in ("query", "out"))
        self._tiles: list[Tile | Single] = []
        end = 0
        for index in indices:
            start, end = end, end + index.rows.size
            self._tiles.append(tile_of(index, shape, cache, self._query[start:end], self._out[start:end], scratch))

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None) -> Tensor:
        """query `[T, heads, D]`, a layer's cache `[kv_heads, num_blocks, block_size, D]` -> `[T, heads, D]`.

        sinks: float32 `[heads]`, for a shape that has them.
        """
        if query.dtype is self._query.dtype:
            torch.index_select(query, 0, self._rows, out=self._query)
        else:
            self._query.copy_(query.index_select(0, self._rows))
        keys, values = self._cache.rows(keys), self._cache.rows(values)
        for tile in self._tiles:
            tile(keys, values, sinks)
        result = torch.empty(query.shape, dtype=query.dtype)
        return result.index_copy_(0, self._rows, self._out.to(query.dtype))
