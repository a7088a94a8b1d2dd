"""The reference backend, kept simple enough to verify by reading: no padding, no tiles, one sequence at a time, on any
device.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from plimsoll_kernels.paged_attention.reference import paged_attention_reference, write_cache_reference
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.capabilities import LATENT, SCORES, Capabilities
from plimsoll_runtime.execution.attention.step_tables import paged_batch
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.attention import Attention, slopes_of


class ReferenceBackend:
    """A slow backend to compare others with, and to rule attention out as the cause of wrong output."""

    name: ClassVar[str] = "reference"
    fused: ClassVar[bool] = False
    capabilities: ClassVar[Capabilities] = Capabilities(features=(*SCORES, *LATENT), last_resort=True)

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache

    def begin(self, batch: AttentionBatch) -> Attention:
        """Return a function that computes the step's attention, called for each layer. Block tables and lengths are
        already tensors.
        """
        cache, groups = self._cache, batch.groups
        paged = [paged_batch(group, cache) for group in groups]

        def attention(
            layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
        ) -> Tensor:
            keys, values, shape = cache.keys[layer], cache.values[layer], cache.shapes[layer]
            group = cache.group_of[layer]
            if key is not None and value is not None:
                write_cache_reference(key, value, keys, values, groups[group].cells)
            return paged_attention_reference(
                query,
                keys,
                values,
                paged[group],
                scale=shape.scale,
                window=shape.window,
                softcap=shape.softcap,
                chunk=shape.chunk,
                slopes=slopes_of(shape, cache.device),
                coarse=shape.alibi is not None and shape.alibi.coarse,
                sinks=sinks,
            )

        return attention
