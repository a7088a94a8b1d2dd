"""The backend of cuDNN's attention over our cache as it lies, on NVIDIA's Hopper and Blackwell: torch's `varlen_attn`.

Follows torch 2.15, whose `varlen_attn` gives a paged cache to cuDNN 9.24 and later, with the diagonal at the last row.
Prompts alone: decodes are left to `sdpa`, since torch refuses those of one row with some versions of cuDNN (pytorch
issue 193893).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from plimsoll_kernels.paged_attention.op import write_cache
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.divided import divided
from plimsoll_runtime.execution.attention.paged import paged_batch
from plimsoll_runtime.execution.attention.sdpa import SdpaBackend
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.attention import Attention


class CudnnPagedChunks:
    """See AttentionBackend; for sequences with several rows."""

    name: ClassVar[str] = "cudnn-paged"
    fused: ClassVar[bool] = False

    def __init__(self, cache: KvCache) -> None:
        from torch.nn.attention import varlen

        self._cache = cache
        self._attend: Any = varlen.varlen_attn

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
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                out: Tensor = self._attend(
                    query.contiguous(),
                    # [kv_heads, blocks, block, D] seen as pages [blocks, block, kv_heads, D].
                    keys.permute(1, 2, 0, 3),
                    values.permute(1, 2, 0, 3),
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

        return attention


CudnnPagedBackend = divided(CudnnPagedChunks, SdpaBackend, "cudnn-paged")
