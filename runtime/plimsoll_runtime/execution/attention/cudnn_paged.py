"""The backend of cuDNN's attention over our cache as it lies, on NVIDIA's Hopper and Blackwell: torch's `varlen_attn`.

Follows torch 2.15, whose `varlen_attn` gives a paged cache to cuDNN 9.24 and later, with the diagonal at the last row.
Prompts alone: decodes are left to `sdpa`, since torch refuses those of one row with some versions of cuDNN (pytorch
issue 193893).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.divided import divided
from plimsoll_runtime.execution.attention.pages import Attend, PagesBackend
from plimsoll_runtime.execution.attention.sdpa import SdpaBackend
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape


class CudnnPagedChunks(PagesBackend):
    """For sequences with several rows."""

    name: ClassVar[str] = "cudnn-paged"

    def __init__(self, cache: KvCache) -> None:
        from torch.nn.attention import varlen

        super().__init__(cache)
        self._attend: Any = varlen.varlen_attn

    def attend_over(self, paged: PagedBatch) -> Attend:
        """See PagesBackend."""

        def attend(query: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape) -> Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                out: Tensor = self._attend(
                    query,
                    keys,
                    values,
                    paged.query_starts,
                    None,
                    paged.max_query_len,
                    paged.max_context_len,
                    scale=shape.scale,
                    # All tokens to the left of the row's own, and none to its right.
                    window_size=(-1, 0),
                    enable_gqa=shape.heads != shape.kv_heads,
                    seqused_k=paged.context_lens,
                    block_table=paged.block_tables,
                )
            return out

        return attend


CudnnPagedBackend = divided(CudnnPagedChunks, SdpaBackend, "cudnn-paged")
