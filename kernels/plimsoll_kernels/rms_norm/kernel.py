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
    x_outer,
    x_inner,
    residual_outer,
    residual_inner,
    eps,
    INNER: tl.constexpr,
    WEIGHTS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ADD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    inside = column < SIZE
    outer, inner = row // INNER, row % INNER
    value = tl.load(x + outer * x_outer + inner * x_inner + column, mask=inside, other=0.0)
    if ADD:
        other = tl.load(residual + outer * residual_outer + inner * residual_inner + column, mask=inside, other=0.0)
        value = (value.to(tl.float32) + other.to(tl.float32)).to(value.dtype)
        tl.store(total_out + row * SIZE + column, value, mask=inside)
    wide = value.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    factor = tl.load(weight + (row % WEIGHTS) * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + column, (wide * scale * factor).to(value.dtype), mask=inside)


def launch_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Compute x and residual `[A, B, D]` with contiguous rows, weight `[D]` or `[B, D]` -> (norm, sum), all contiguous.

    Without a residual the sum is x.
    """
    outer, inner, size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(out)
    other = x if residual is None else residual
    padded = triton.next_power_of_2(size)
    _rms_norm[(outer * inner,)](
        out,
        total,
        x,
        other,
        weight,
        *x.stride()[:2],
        *other.stride()[:2],
        eps,
        INNER=inner,
        WEIGHTS=weight.numel() // size,
        SIZE=size,
        PADDED=padded,
        ADD=residual is not None,
        num_warps=min(16, max(1, padded // 512)),
        enable_fp_fusion=True,
    )
    return out, total
