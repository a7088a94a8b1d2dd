"""Attention steps that first write keys and values to the cache with the project's own kernels, then attend to the
cache.
"""

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
    """A step's attention, which writes keys and values to the cache, then attends. `cells`: int64 [T] of all rows, for
    each cache group.
    """

    def __init__(self, cache: KvCache, cells: Sequence[Tensor], implementation: Implementation = "auto") -> None:
        self._cache = cache
        self._cells = cells
        self._implementation: Implementation = implementation

    @abstractmethod
    def attend(self, layer: int, query: Tensor, sinks: Tensor | None) -> Tensor:
        """Attend query [T, heads, D] -> [T, heads, D] to keys and values that are in the cache already."""

    def __call__(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        """Write key and value [T, kv_heads, D], then attend query [T, heads, D]; sinks [heads] -> [T, heads, D]."""
        cache = self._cache
        if key is not None and value is not None:
            cells = self._cells[cache.group_of[layer]]
            keys, values = cache.keys[layer], cache.values[layer]
            write_cache(key, value, keys, values, cells, implementation=self._implementation)
        return self.attend(layer, query, sinks)


class RotatingWritingStep(WritingStep):
    """A step's attention that also rotates queries and keys as it writes to the cache (`RotatingAttention`)."""

    def of_heads(
        self,
        layer: int,
        heads: Tensor,
        cos: Tensor,
        sin: Tensor,
        norm: NormOfHeads | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Rotate and write heads [T, heads + 2 kv_heads, D] by cos and sin [T, D / 2], then attend -> [T, heads, D]."""
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
