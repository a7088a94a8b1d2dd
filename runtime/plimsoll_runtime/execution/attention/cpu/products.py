"""Scores and weighted sums of a tile, as batched matrix products in the fastest form that keeps float32's scores.

bfloat16 through oneDNN runs at twice float32's speed, but a product comes back rounded to bfloat16: a score of
10 would be off by 0.03. The rounding error is itself a product, q k^T - round(q k^T), which `baddbmm`
accumulates in float32; the two add up to 16 bits of mantissa, and the second pass finds the keys in the cache.
Measured on random normal data, relative error of the output: 0.0022 so, 0.0018 to 0.0022 with torch's SDPA,
0.004 to 0.014 with rounded scores, 0.0016 for the exact result rounded to bfloat16.

Where a CPU does not multiply bfloat16 or float16 in hardware (stock torch then takes 3 to 50 times as long), the
gathered blocks are widened to float32 instead.
"""

from __future__ import annotations

import torch
from torch import Tensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that a tile's products read: the cache's own, or float32 where that is faster."""
    if dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return dtype
    return torch.float32


class Scratch:
    """Memory that tiles reuse: fresh pages for each tile's scores would cost more than the scores."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor of unknown content. It shares memory with whatever else was taken by that name."""
        count = 1
        for size in shape:
            count *= size
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < count or buffer.dtype != dtype:
            with torch.inference_mode(False):
                buffer = self._buffers[name] = torch.empty(count, dtype=dtype)
        return buffer[:count].view(shape)


def scores(query: Tensor, key: Tensor, scale: float, scratch: Scratch) -> Tensor:
    """scale x query key^T in float32: `[N, M, D]`, `[N, S, D]` -> `[N, M, S]`, in scratch memory."""
    shape = (query.shape[0], query.shape[1], key.shape[1])
    transposed = key.transpose(1, 2)
    result = scratch.take("scores", shape, torch.float32)
    if query.dtype is torch.float32:
        return result.baddbmm_(query, transposed, beta=0, alpha=scale)
    product = scratch.take("narrow", shape, query.dtype)
    product.baddbmm_(query, transposed, beta=0, alpha=scale)
    result.copy_(product)
    product.baddbmm_(query, transposed, beta=-1, alpha=scale)
    return result.add_(scratch.take("wide", shape, torch.float32).copy_(product))


def weighted(weights: Tensor, value: Tensor, out: Tensor, scratch: Scratch) -> None:
    """out = weights value: float32 `[N, M, S]`, `[N, S, D]` -> `[N, M, D]`, in whatever dtype out has."""
    if value.dtype is not torch.float32:
        weights = scratch.take("narrow", tuple(weights.shape), value.dtype).copy_(weights)
    if out.dtype is value.dtype:
        torch.bmm(weights, value, out=out)
    else:
        out.copy_(torch.bmm(weights, value))
