"""Bases of backends that write a step's keys and values to the cache, then attend to the cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from plimsoll_kernels.paged_attention.op import write_cache
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.step_tables import StepTables, step_tables
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.spec.attention import AttentionShape

LayerAttention = Callable[[int, Tensor, Tensor | None], Tensor]
"""(layer, query [T, heads, D], sinks [heads]) -> [T, heads, D], over keys and values that are in the cache already."""


class CacheBackend(ABC):
    """Writes keys and values to the cache, then calls the attention of a subclass."""

    name: ClassVar[str]
    fused: ClassVar[bool] = False

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._kinds = tuple(zip(cache.group_of, cache.shapes, strict=True))

    @abstractmethod
    def attend_step(self, batch: AttentionBatch) -> LayerAttention:
        """Return a function that attends to the cache for a layer of the step. The work that layers share is done
        before.
        """

    def begin(self, batch: AttentionBatch) -> Attention:
        attend, cache, groups = self.attend_step(batch), self._cache, batch.groups

        def attention(
            layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
        ) -> Tensor:
            if key is not None and value is not None:
                cells = groups[cache.group_of[layer]].cells
                write_cache(key, value, cache.keys[layer], cache.values[layer], cells)
            return attend(layer, query, sinks)

        return attention


class CallsBackend(CacheBackend):
    """Computes a step in several calls, each with some of its rows (`call.rows`)."""

    @abstractmethod
    def calls(self, tables: StepTables, shape: AttentionShape) -> Iterable[Any]:
        """Return the calls of a step, which the layers of one cache group and shape share."""

    @abstractmethod
    def attend(
        self, call: Any, query: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape, sinks: Tensor | None
    ) -> Tensor:
        """Attend one call's rows [N, heads, D] to a layer's cache [kv_heads, blocks, block, D] -> [N, heads, D]."""

    def attend_step(self, batch: AttentionBatch) -> LayerAttention:
        cache = self._cache
        tables = [step_tables(group, cache.block_size) for group in batch.groups]
        calls = {(group, shape): list(self.calls(tables[group], shape)) for group, shape in set(self._kinds)}

        def attend(layer: int, query: Tensor, sinks: Tensor | None) -> Tensor:
            keys, values, kind = cache.keys[layer], cache.values[layer], self._kinds[layer]
            out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
            for call in calls[kind]:
                out[call.rows] = self.attend(call, query[call.rows], keys, values, kind[1], sinks)
            return out

        return attend
