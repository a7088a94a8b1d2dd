"""The backend of FlashAttention 2 (Dao, 2023): its kernel for sequences of any lengths, over our cache as it lies.

Follows the interface of flash-attn 2.6 and later, whose pages are of a multiple of 256 tokens: `--block-size 256`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.op import write_cache
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.paged import paged_batch
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.attention import Attention


class FlashAttnBackend:
    """Needs the package, imported here and nowhere else."""

    name: ClassVar[str] = "flash-attn"
    fused: ClassVar[bool] = False

    def __init__(self, cache: KvCache) -> None:
        from flash_attn import flash_attn_varlen_func

        self._cache = cache
        self._attend: Any = flash_attn_varlen_func

    def begin(self, batch: AttentionBatch) -> Attention:
        """The batch's tables on the device: one copy a group."""
        cache, groups = self._cache, batch.groups
        tables = [paged_batch(group, cache) for group in groups]
        starts = [_key_starts(paged) for paged in tables]

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
                cu_seqlens_q=paged.query_starts,
                cu_seqlens_k=starts[group],
                max_seqlen_q=paged.max_query_len,
                max_seqlen_k=paged.max_context_len,
                softmax_scale=shape.scale,
                causal=True,
                # Tokens to the left of the row's own, and to its right; ours counts its own too.
                window_size=(-1, -1) if shape.window is None else (shape.window - 1, 0),
                softcap=shape.softcap or 0.0,
                block_table=paged.block_tables,
            )
            return out

        return attention


def _key_starts(paged: PagedBatch) -> Tensor:
    """int32 [S + 1]: where each sequence's keys would begin, were they one after the other."""
    starts = paged.context_lens.new_zeros(len(paged.context_lens) + 1)
    starts[1:] = paged.context_lens.cumsum(0)
    return starts
