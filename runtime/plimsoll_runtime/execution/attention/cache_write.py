"""Attention over the cache alone: a step's keys and values are written there first, by our own kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from plimsoll_kernels.dispatch import Implementation
from plimsoll_kernels.paged_attention.op import write_cache
from plimsoll_kernels.rotary_cache.op import rotary_cache
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.attention import NormOfHeads


class WritingStep(ABC):
    """See Attention. `cells`: int64 [T] of all rows, in each group of the cache."""

    def __init__(self, cache: KvCache, cells: Sequence[Tensor], implementation: Implementation = "auto") -> None:
        self._cache = cache
        self._cells = cells
        self._implementation: Implementation = implementation

    @abstractmethod
    def attend(self, layer: int, query: Tensor, sinks: Tensor | None) -> Tensor:
        """query [T, heads, D] -> [T, heads, D], over keys and values that are in the cache already."""

    def __call__(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        """query [T, heads, D], key and value [T, kv_heads, D], sinks [heads] -> [T, heads, D]."""
        cache = self._cache
        if key is not None and value is not None:
            cells = self._cells[cache.group_of[layer]]
            keys, values = cache.keys[layer], cache.values[layer]
            write_cache(key, value, keys, values, cells, implementation=self._implementation)
        return self.attend(layer, query, sinks)


class RotatingWritingStep(WritingStep):
    """See RotatingAttention: heads are rotated on their way into the cache."""

    def of_heads(
        self,
        layer: int,
        heads: Tensor,
        cos: Tensor,
        sin: Tensor,
        norm: NormOfHeads | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """heads [T, heads + 2 kv_heads, D], cos and sin [T, D / 2] -> [T, heads, D]."""
        cache = self._cache
        query = rotary_cache(
            heads,
            cos,
            sin,
            cache.keys[layer],
            cache.values[layer],
            self._cells[cache.group_of[layer]],
            norm=None if norm is None else norm.weight,
            eps=0.0 if norm is None else norm.eps,
            implementation=self._implementation,
        )
        return self.attend(layer, query, sinks)
