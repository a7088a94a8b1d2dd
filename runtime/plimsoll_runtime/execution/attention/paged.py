"""Base of backends whose kernels read the KV cache in place, page by page."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.cache_backend import CacheBackend, LayerAttention
from plimsoll_runtime.execution.attention.step_tables import paged_batch
from plimsoll_runtime.models.spec.attention import AttentionShape

Attend = Callable[[Tensor, Tensor, Tensor, AttentionShape], Tensor]
"""(query [T, heads, D], pages of keys and of values [blocks, block, kv_heads, D], a layer's shape) -> [T, heads, D]."""


class PagesBackend(CacheBackend):
    """Writes keys and values to the cache, then calls the kernel of a subclass on its pages."""

    @abstractmethod
    def attend_over(self, paged: PagedBatch) -> Attend:
        """Return the attention of a step's rows in one cache group: made once a step, called for each of its layers."""

    def attend_step(self, batch: AttentionBatch) -> LayerAttention:
        """Return a function that attends to the cache for a layer of the step. Copies one table a cache group to the
        device.
        """
        cache = self._cache
        attends = [self.attend_over(paged_batch(group, cache)) for group in batch.groups]

        def attend(layer: int, query: Tensor, sinks: Tensor | None) -> Tensor:
            # [kv_heads, blocks, block, D] viewed as pages [blocks, block, kv_heads, D].
            pages = cache.keys[layer].permute(1, 2, 0, 3), cache.values[layer].permute(1, 2, 0, 3)
            return attends[cache.group_of[layer]](query.contiguous(), *pages, cache.shapes[layer])

        return attend


def window_of(shape: AttentionShape) -> tuple[int, int]:
    """Return the tokens that a row sees to the left and right of its own, as FlashAttention counts them: -1 for all.

    `shape.window` counts the row's own token too.
    """
    return (-1, -1) if shape.window is None else (shape.window - 1, 0)
