"""The rotation in Triton: one program rotates all heads of a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotary(
    out,
    heads,
    cos,
    sin,
    row_stride,
    head_stride,
    HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    REST_PADDED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_PADDED)[:, None]
    pair = tl.arange(0, HALF_PADDED)[None, :]
    source = heads + row * row_stride + head * head_stride
    target = out + (row * HEADS + head) * SIZE
    inside = (head < HEADS) & (pair < HALF)
    first = tl.load(source + pair, mask=inside, other=0.0)
    second = tl.load(source + pair + HALF, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + row * HALF + pair, mask=pair < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + row * HALF + pair, mask=pair < HALF, other=0.0).to(tl.float32)
    wide = first.to(tl.float32)
    tl.store(target + pair, (wide * c - second * s).to(first.dtype), mask=inside)
    tl.store(target + pair + HALF, (second * c + wide * s).to(first.dtype), mask=inside)
    if REST_PADDED > 0:
        rest = 2 * HALF + tl.arange(0, REST_PADDED)[None, :]
        kept = (head < HEADS) & (rest < SIZE)
        tl.store(target + rest, tl.load(source + rest, mask=kept, other=0.0), mask=kept)


def launch_rotary(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads `[T, H, D]` by cos and sin, contiguous `[T, R / 2]` -> contiguous `[T, H, D]`."""
    rows, count, size = heads.shape
    half = cos.shape[1]
    rest = size - 2 * half
    out = torch.empty((rows, count, size), dtype=heads.dtype, device=heads.device)
    _rotary[(rows,)](
        out,
        heads,
        cos,
        sin,
        heads.stride(0),
        heads.stride(1),
        HEADS=count,
        HEADS_PADDED=triton.next_power_of_2(count),
        SIZE=size,
        HALF=half,
        HALF_PADDED=triton.next_power_of_2(half),
        REST_PADDED=triton.next_power_of_2(rest) if rest else 0,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out
