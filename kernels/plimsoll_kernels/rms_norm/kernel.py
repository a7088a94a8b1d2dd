"""The norm in Triton: one program for each row, which fits in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(
    out,
    total_out,
    x,
    residual,
    weight,
    x_stride,
    residual_stride,
    eps,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ADD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    inside = column < SIZE
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    if ADD:
        other = tl.load(residual + row * residual_stride + column, mask=inside, other=0.0)
        value = (value.to(tl.float32) + other.to(tl.float32)).to(value.dtype)
        tl.store(total_out + row * SIZE + column, value, mask=inside)
    wide = value.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + column, (wide * scale * factor).to(value.dtype), mask=inside)


def launch_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x and residual `[rows, D]` with contiguous rows -> (norm, sum), both contiguous; without residual sum is x."""
    rows, size = x.shape
    out = torch.empty((rows, size), dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(out)
    padded = triton.next_power_of_2(size)
    _rms_norm[(rows,)](
        out,
        total,
        x,
        x if residual is None else residual,
        weight,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        eps,
        SIZE=size,
        PADDED=padded,
        ADD=residual is not None,
        num_warps=min(16, max(1, padded // 512)),
    )
    return out, total
