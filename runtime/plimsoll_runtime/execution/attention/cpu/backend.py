"""The CPU backend: one plan for each distinct attention shape, a few tiles for each plan."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.cpu.products import Scratch, compute_dtype
from plimsoll_runtime.execution.attention.cpu.segments import TileCosts, plan_tiles
from plimsoll_runtime.execution.attention.cpu.tile import Tile
from plimsoll_runtime.execution.attention.cpu.writes import CacheWrites
from plimsoll_runtime.execution.attention.tables import StepTables, step_tables
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.spec import Attention, AttentionShape


class CpuBackend:
    """Paged attention with stock torch on a CPU, in any float dtype (see the package)."""

    name: ClassVar[str] = "cpu"

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._compute_dtype = compute_dtype(cache.dtype)
        self._costs = {shape: TileCosts.of(shape, cache.dtype.itemsize) for shape in set(cache.shapes)}
        self._scratch = Scratch()

    def begin(self, batch: AttentionBatch) -> Attention:
        """Indices and masks of the step, shared by the layers of one shape."""
        tables = step_tables(batch, self._cache.block_size, self._cache.num_blocks)
        plans = {shape: self._plan(shape, batch, tables) for shape in self._costs}
        writes = CacheWrites(batch, self._cache.block_size)
        layers = [plans[shape] for shape in self._cache.shapes]

        def attention(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._cache.keys[layer], self._cache.values[layer]
            writes.write(keys, key)
            writes.write(values, value)
            return layers[layer].attend(query, keys, values, self._compute_dtype, self._scratch)

        return attention

    def _plan(self, shape: AttentionShape, batch: AttentionBatch, tables: StepTables) -> StepTiles:
        size, blocks = self._cache.block_size, self._cache.num_blocks
        plans = plan_tiles(batch.query_lens, batch.context_lens, size, self._costs[shape])
        return StepTiles([Tile(plan, tables, shape, blocks, size) for plan in plans], int(tables.query_lens.sum()))


class StepTiles:
    """All tiles of a step for one attention shape."""

    def __init__(self, tiles: list[Tile], num_rows: int) -> None:
        rows = np.concatenate([tile.rows for tile in tiles])
        in_order = len(rows) == num_rows and bool((rows == np.arange(num_rows)).all())
        self._rows = None if in_order else torch.from_numpy(rows)
        ends = np.cumsum([len(tile.rows) for tile in tiles])
        self._tiles = [
            (tile, slice(int(end) - len(tile.rows), int(end))) for tile, end in zip(tiles, ends, strict=True)
        ]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, dtype: torch.dtype, scratch: Scratch) -> Tensor:
        """query `[T, heads, D]`, a layer's cache -> `[T, heads, D]`; the products read `dtype`."""
        gathered = query if self._rows is None else query.index_select(0, self._rows)
        gathered = gathered.to(dtype).contiguous()
        result = torch.empty(gathered.shape, dtype=query.dtype)
        keys, values = keys.flatten(2).flatten(0, 1), values.flatten(2).flatten(0, 1)
        for tile, rows in self._tiles:
            tile.attend(gathered[rows], keys, values, result[rows], scratch)
        if self._rows is None:
            return result
        # Rows that stand in a tile twice were computed from the same numbers: either copy is right.
        return torch.empty(query.shape, dtype=query.dtype).index_copy_(0, self._rows, result)
