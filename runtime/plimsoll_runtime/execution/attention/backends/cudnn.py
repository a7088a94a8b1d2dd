"""The backends of cuDNN's attention on NVIDIA GPUs, for prompts: one over gathered keys and values, one over the KV
cache in place.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention import machine
from plimsoll_runtime.execution.attention.backends.sdpa import SdpaBackend
from plimsoll_runtime.execution.attention.cache_backend import CallsBackend
from plimsoll_runtime.execution.attention.capabilities import ANY, HALF, Capabilities, Target, multiples
from plimsoll_runtime.execution.attention.paged import Attend, PagesBackend
from plimsoll_runtime.execution.attention.split import split_backend
from plimsoll_runtime.execution.attention.step_tables import StepTables
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.device_copy import to_device
from plimsoll_runtime.models.spec.attention import AttentionShape

PREFIX_TOKENS = 8192
"""The most tokens of a prefix that are gathered at a time, so that memory does not grow with the prefix."""


class _Piece(NamedTuple):
    """Consecutive tokens of a sequence: of the tokens in `blocks` (block numbers, int64 [W]), those with the indices
    `skipped` to `end` - 1.
    """

    blocks: Tensor
    skipped: int
    end: int


class _Chunk(NamedTuple):
    """A sequence of the step. `rows`: its rows; `own`: its tokens of this step; `prefix`: its earlier tokens, in pieces
    of at most PREFIX_TOKENS.
    """

    rows: slice
    own: _Piece
    prefix: list[_Piece]


def _wide_heads_refusal(target: Target) -> str | None:
    """Return why heads are too wide, by the rules of torch's op (`check_cudnn_tensor_shapes`); None if they are not."""
    widest = max((shape.head_dim for shape in target.shapes), default=0)
    newer = machine.release(machine.installed("cudnn") or "") >= (9, 10)
    if widest <= 128 or (newer and machine.capability(target.device) == (9, 0)):
        return None
    return f"supports head sizes above 128 only with cuDNN 9.10 on compute capability 9.0; the model has {widest}"


class CudnnChunks(CallsBackend):
    """Attention of sequences with several rows, over gathered keys and values.

    cuDNN's causal mask lets row i see keys 0 to i, which is wrong for a chunk after a prefix, and torch's
    `causal_lower_right` does not reach cuDNN. So such a chunk is attended in parts: its own tokens with a causal mask,
    the tokens before them without one. The results are weighted by their sums of exponentials and added, as torch's
    ring attention does (`torch.distributed.tensor.experimental`). No mask is ever in memory. Decodes are left to
    `sdpa`: for one row cuDNN gives wrong results on some devices (pytorch issue 193893). torch makes a plan for each
    new pair of lengths.
    """

    name: ClassVar[str] = "cudnn"
    capabilities: ClassVar[Capabilities] = Capabilities(
        devices=("cuda",),
        dtypes=HALF,
        head_dims=multiples(8, 256),
        compute_capability=ANY[8:],
        needs=("cudnn",),
        checks=(_wide_heads_refusal,),
    )

    def calls(self, tables: StepTables, shape: AttentionShape) -> list[_Chunk]:
        """Return one call for each sequence: its new tokens, and its earlier tokens in pieces of PREFIX_TOKENS or
        fewer.
        """
        chunks = []
        starts = tables.context_lens - tables.query_lens
        for i, (first, start, end) in enumerate(zip(tables.first_rows, starts, tables.context_lens, strict=True)):
            blocks = tables.blocks[tables.first_blocks[i] :][: tables.num_blocks[i]].astype(np.int64)
            there = to_device(blocks, self._cache.device)
            prefix = [
                _piece(there, at, min(at + PREFIX_TOKENS, int(start)), self._cache.block_size)
                for at in range(0, int(start), PREFIX_TOKENS)
            ]
            own = _piece(there, int(start), int(end), self._cache.block_size)
            chunks.append(_Chunk(slice(int(first), int(first + end - start)), own, prefix))
        return chunks

    def attend(
        self, call: _Chunk, query: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape, sinks: Tensor | None
    ) -> Tensor:
        """Attend the rows of one chunk: query [Q, heads, D] -> [Q, heads, D]."""
        heads = query.transpose(0, 1)[None]
        out, sums = cudnn_attention(heads, *_gathered(call.own, keys, values), causal=True, scale=shape.scale)
        if call.prefix:
            out = out.float()
        for piece in call.prefix:
            more, more_sums = cudnn_attention(heads, *_gathered(piece, keys, values), causal=False, scale=shape.scale)
            share = torch.sigmoid(more_sums - sums)[..., None]
            out = torch.lerp(out, more.float(), share)
            sums = torch.logaddexp(sums, more_sums)
        return out[0].transpose(0, 1).to(query.dtype)


CudnnBackend = split_backend(CudnnChunks, SdpaBackend, "cudnn")


def cudnn_attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attend queries [1, heads, Q, D] to keys and values [1, kv_heads, K, D].

    Returns outputs shaped like the queries, and the natural logarithms of the sums of exponentials, float32 [1, heads,
    Q]. If `causal`, row i sees the keys 0 to i; otherwise each row sees all keys.
    """
    out, sums, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, None, True, 0.0, causal, False, scale=scale
    )
    return out, sums.reshape(query.shape[:3])


def _piece(blocks: Tensor, start: int, end: int, size: int) -> _Piece:
    """Return the tokens from `start` to before `end` of a block table."""
    first = start // size
    return _Piece(blocks[first : -(-end // size)], start - first * size, end - first * size)


def _gathered(piece: _Piece, *caches: Tensor) -> list[Tensor]:
    """Copy a piece's tokens from each of the caches: [kv_heads, blocks, block, D] -> [1, kv_heads, tokens, D]."""
    return [cache[:, piece.blocks].flatten(1, 2)[None, :, piece.skipped : piece.end] for cache in caches]


class CudnnPagedChunks(PagesBackend):
    """Attention of sequences with several rows, over the KV cache in place.

    For NVIDIA's Hopper and Blackwell, with torch's `varlen_attn`. Needs torch 2.15, whose `varlen_attn` passes a paged
    cache to cuDNN 9.24 and later, with the diagonal at the last row. Decodes are left to `sdpa`, because torch refuses
    decodes with some versions of cuDNN (pytorch issue 193893).
    """

    name: ClassVar[str] = "cudnn-paged"
    capabilities: ClassVar[Capabilities] = Capabilities(
        devices=("cuda",),
        dtypes=HALF,
        head_dims=multiples(8, 128),
        block_sizes=(8, 16, 32, 64, 128, 256),
        compute_capability=(9, 10),
        needs=("torch>=2.15", "cudnn>=9.24"),
    )

    def __init__(self, cache: KvCache) -> None:
        from torch.nn.attention import varlen

        super().__init__(cache)
        self._attend: Any = varlen.varlen_attn

    def attend_over(self, paged: PagedBatch) -> Attend:
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


CudnnPagedBackend = split_backend(CudnnPagedChunks, SdpaBackend, "cudnn-paged")
