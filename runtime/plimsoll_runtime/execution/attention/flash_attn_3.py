"""The backend of FlashAttention 3 (Shah et al., 2024) on NVIDIA's Hopper: its kernel over our cache as it lies.

Follows `flash_attn_interface`, the module of the package flash-attn-3, whose pages may be of any size.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from plimsoll_kernels.paged_attention.op import write_cache
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.paged import paged_batch
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.attention import Attention


class FlashAttn3Backend:
    """Needs the package, imported here and nowhere else."""

    name: ClassVar[str] = "flash-attn-3"
    fused: ClassVar[bool] = False

    def __init__(self, cache: KvCache) -> None:
        from flash_attn_interface import flash_attn_with_kvcache

        self._cache = cache
        self._attend: Any = flash_attn_with_kvcache

    def begin(self, batch: AttentionBatch) -> Attention:
        """The batch's tables on the device: one copy a group."""
        cache, groups = self._cache, batch.groups
        tables = [paged_batch(group, cache) for group in groups]

        def attention(
            layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
        ) -> Tensor:
            keys, values, shape = cache.keys[layer], cache.values[layer], cache.shapes[layer]
            group = cache.group_of[layer]
            paged = tables[group]
            if key is not None and value is not None:
                write_cache(key, value, keys, values, groups[group].cells)
            out: Tensor = self._attend(
                query.contiguous(),
                # [kv_heads, blocks, block, D] seen as pages [blocks, block, kv_heads, D].
                keys.permute(1, 2, 0, 3),
                values.permute(1, 2, 0, 3),
                cache_seqlens=paged.context_lens,
                page_table=paged.block_tables,
                cu_seqlens_q=paged.query_starts,
                max_seqlen_q=paged.max_query_len,
                softmax_scale=shape.scale,
                causal=True,
                # Tokens to the left of the row's own, and to its right; ours counts its own too.
                window_size=(-1, -1) if shape.window is None else (shape.window - 1, 0),
                softcap=shape.softcap or 0.0,
            )
            return out

        return attention
