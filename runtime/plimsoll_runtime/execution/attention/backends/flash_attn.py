"""The backends of FlashAttention 2 and 3, over the KV cache in place."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.capabilities import HALF, Capabilities, multiples
from plimsoll_runtime.execution.attention.paged import Attend, PagesBackend, window_of
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape


class FlashAttnBackend(PagesBackend):
    """FlashAttention 2 (Dao, 2023). Needs the package flash-attn 2.6 or later, which only this class imports.

    Its pages have a multiple of 256 tokens: `--block-size 256`.
    """

    name: ClassVar[str] = "flash-attn"
    capabilities: ClassVar[Capabilities] = Capabilities(
        devices=("cuda", "rocm"),
        dtypes=HALF,
        features=("window", "softcap"),
        head_dims=multiples(8, 256),
        block_sizes=multiples(256),
        needs=("flash_attn",),
    )

    def __init__(self, cache: KvCache) -> None:
        from flash_attn import flash_attn_varlen_func

        super().__init__(cache)
        self._attend: Any = flash_attn_varlen_func

    def attend_over(self, paged: PagedBatch) -> Attend:
        key_starts = _key_starts(paged)

        def attend(query: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape) -> Tensor:
            out: Tensor = self._attend(
                query,
                keys,
                values,
                cu_seqlens_q=paged.query_starts,
                cu_seqlens_k=key_starts,
                max_seqlen_q=paged.max_query_len,
                max_seqlen_k=paged.max_context_len,
                softmax_scale=shape.scale,
                causal=True,
                window_size=window_of(shape),
                softcap=shape.softcap or 0.0,
                block_table=paged.block_tables,
            )
            return out

        return attend


def _key_starts(paged: PagedBatch) -> Tensor:
    """Return for each sequence the sum of the context lengths before it, then the sum of all, int32 [S + 1]:
    FlashAttention 2 takes lengths in this form.
    """
    starts = paged.context_lens.new_zeros(len(paged.context_lens) + 1)
    starts[1:] = paged.context_lens.cumsum(0)
    return starts


class FlashAttn3Backend(PagesBackend):
    """FlashAttention 3 (Shah et al., 2024) on NVIDIA's Hopper. Needs the package flash-attn-3, which only this class
    imports.

    Follows its module `flash_attn_interface`, whose pages may have any size.
    """

    name: ClassVar[str] = "flash-attn-3"
    capabilities: ClassVar[Capabilities] = Capabilities(
        devices=("cuda",),
        dtypes=HALF,
        features=("window", "softcap"),
        head_dims=multiples(8, 256),
        compute_capability=(9,),
        needs=("flash_attn_interface",),
    )

    def __init__(self, cache: KvCache) -> None:
        from flash_attn_interface import flash_attn_with_kvcache

        super().__init__(cache)
        self._attend: Any = flash_attn_with_kvcache

    def attend_over(self, paged: PagedBatch) -> Attend:
        def attend(query: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape) -> Tensor:
            out: Tensor = self._attend(
                query,
                keys,
                values,
                cache_seqlens=paged.context_lens,
                page_table=paged.block_tables,
                cu_seqlens_q=paged.query_starts,
                max_seqlen_q=paged.max_query_len,
                softmax_scale=shape.scale,
                causal=True,
                window_size=window_of(shape),
                softcap=shape.softcap or 0.0,
            )
            return out

        return attend
