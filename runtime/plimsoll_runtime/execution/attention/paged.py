"""Base of backends whose kernels read the KV cache in place, page by page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.op import write_cache
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.step_tables import paged_batch
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.spec.attention import AttentionShape

Attend = Callable[[Tensor, Tensor, Tensor, AttentionShape], Tensor]
"""(query [T, heads, D], pages of keys and of values [blocks, block, kv_heads, D], a layer's shape) -> [T, heads, D]."""


class PagesBackend(ABC):
    """Writes keys and values to the cache, then calls the kernel of a subclass on its pages."""

    name: ClassVar[str]
    fused: ClassVar[bool] = False

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache

    @abstractmethod
    def attend_over(self, paged: PagedBatch) -> Attend:
        """Return the attention of a step's rows in one cache group: made once a step, called for each of its layers."""

    def begin(self, batch: AttentionBatch) -> Attention:
        """Return the step's attention. Copies one table a cache group to the device."""
        cache, groups = self._cache, batch.groups
        attends = [self.attend_over(paged_batch(group, cache)) for group in groups]

        def attention(
            layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
        ) -> Tensor:
            keys, values, group = cache.keys[layer], cache.values[layer], cache.group_of[layer]
            if key is not None and value is not None:
                write_cache(key, value, keys, values, groups[group].cells)
            # [kv_heads, blocks, block, D] viewed as pages [blocks, block, kv_heads, D].
            pages = keys.permute(1, 2, 0, 3), values.permute(1, 2, 0, 3)
            return attends[group](query.contiguous(), *pages, cache.shapes[layer])

        return attention


def window_of(shape: AttentionShape) -> tuple[int, int]:
    """Return the tokens that a row sees to the left and right of its own, as FlashAttention counts them: -1 for all.

    `shape.window` counts the row's own token too.
    """
    return (-1, -1) if shape.window is None else (shape.window - 1, 0)
