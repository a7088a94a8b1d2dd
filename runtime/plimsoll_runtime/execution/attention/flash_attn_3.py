"""The backend of FlashAttention 3 (Shah et al., 2024) on NVIDIA's Hopper: its kernel over our cache as it lies.

Follows `flash_attn_interface`, the module of the package flash-attn-3, whose pages may be of any size.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.pages import Attend, PagesBackend, window_of
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape


class FlashAttn3Backend(PagesBackend):
    """Needs the package, imported here and nowhere else."""

    name: ClassVar[str] = "flash-attn-3"

    def __init__(self, cache: KvCache) -> None:
        from flash_attn_interface import flash_attn_with_kvcache

        super().__init__(cache)
        self._attend: Any = flash_attn_with_kvcache

    def attend_over(self, paged: PagedBatch) -> Attend:
        """See PagesBackend."""

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
