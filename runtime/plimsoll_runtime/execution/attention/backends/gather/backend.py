"""The backend of stock torch on a CPU: writes the cache, then computes a step's tiles for each attention shape."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.execution.attention.backends.gather.plan import TileCosts, TilePlan, plan_tiles
from plimsoll_runtime.execution.attention.backends.gather.tiles import (
    Scratch,
    Single,
    Tile,
    TileIndex,
    compute_dtype,
    tile_of,
)
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.capabilities import LATENT, SCORES, Capabilities
from plimsoll_runtime.execution.attention.step_tables import StepTables, step_tables
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.spec.attention import AttentionShape


class StepTiles:
    """A step's attention for one cache group and attention shape: copies the step's query rows into the tiles' order,
    calls the tiles, and copies the results back.

    Rows that are in a tile twice (padding) are computed from the same numbers, so either copy is right.
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
        """Attend query `[T, heads, D]` to a layer's cache `[kv_heads, num_blocks, block_size, D]` -> `[T, heads, D]`.

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


class CacheWrites:
    """Writes a step's keys and values to their cells.

    Blocks that the step begins without filling are cleared first: attention reads their unwritten cells with weight 0,
    and 0 x NaN from an earlier sequence would be NaN.
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


class GatheredBackend:
    """Paged attention with stock torch on a CPU, in any float dtype."""

    name: ClassVar[str] = "torch"
    fused: ClassVar[bool] = False
    capabilities: ClassVar[Capabilities] = Capabilities(devices=("cpu",), features=(*SCORES, *LATENT))

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._costs = {shape: TileCosts.of(shape, cache.dtype.itemsize) for shape in set(cache.shapes)}
        self._kinds = tuple(zip(cache.group_of, cache.shapes, strict=True))
        self._scratch = Scratch()

    def begin(self, batch: AttentionBatch) -> Attention:
        """Return a function that computes the step's attention, called for each layer. Layers of one cache group and
        shape share indices and masks.
        """
        cache, groups = self._cache, batch.groups
        tables = [step_tables(group, cache.block_size) for group in groups]
        plans = {(g, shape): self._plan(shape, groups[g], tables[g]) for g, shape in set(self._kinds)}
        writes = [CacheWrites(group, cache.block_size) for group in groups]

        def attention(
            layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
        ) -> Tensor:
            keys, values, kind = cache.keys[layer], cache.values[layer], self._kinds[layer]
            if key is not None and value is not None:
                writes[kind[0]].write(keys, key)
                if values is not keys:
                    writes[kind[0]].write(values, value)
            return plans[kind].attend(query, keys, values, sinks)

        return attention

    def _plan(self, shape: AttentionShape, batch: AttentionBatch, tables: StepTables) -> StepTiles:
        plans = plan_tiles(batch.query_lens, batch.context_lens, self._cache.block_size, self._costs[shape])
        return StepTiles(plans, tables, shape, self._cache, self._scratch)
