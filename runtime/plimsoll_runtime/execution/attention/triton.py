"""The backend for CUDA and ROCm: our Triton kernels over the paged cache, whatever the batch."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from plimsoll_kernels.paged_attention.op import paged_attention, write_cache
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.paged import paged_batch
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.spec import Attention


class TritonBackend:
    """One kernel for prompts' chunks and decodes alike."""

    name: ClassVar[str] = "triton"
    fused: ClassVar[bool] = False

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache

    def begin(self, batch: AttentionBatch) -> Attention:
        """The batch's tables on the device: one copy a step."""
        cache = self._cache
        paged = paged_batch(batch, cache)

        def attention(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values, shape = cache.keys[layer], cache.values[layer], cache.shapes[layer]
            write_cache(key, value, keys, values, batch.slot_mapping, implementation="triton")
            return paged_attention(
                query,
                keys,
                values,
                paged,
                scale=shape.scale,
                window=shape.window,
                softcap=shape.softcap,
                implementation="triton",
            )

        return attention
