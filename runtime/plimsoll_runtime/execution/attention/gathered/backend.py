"""The CPU backend: one plan for each distinct attention shape, a few tiles for each plan."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.gathered.products import Scratch
from plimsoll_runtime.execution.attention.gathered.segments import TileCosts, plan_tiles
from plimsoll_runtime.execution.attention.gathered.step import StepTiles
from plimsoll_runtime.execution.attention.gathered.writes import CacheWrites
from plimsoll_runtime.execution.attention.tables import StepTables, step_tables
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.spec.attention import AttentionShape


class GatheredBackend:
    """Paged attention with stock torch on a CPU, in any float dtype (see the package)."""

    name: ClassVar[str] = "torch"
    fused: ClassVar[bool] = False

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._costs = {shape: TileCosts.of(shape, cache.dtype.itemsize) for shape in set(cache.shapes)}
        self._kinds = tuple(zip(cache.group_of, cache.shapes, strict=True))
        self._scratch = Scratch()

    def begin(self, batch: AttentionBatch) -> Attention:
        """Indices and masks of the step, shared by the layers of one group and shape."""
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
