"""The norm in plain torch."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32, rounded once.

    x `[..., D]`, weight `[D]`, or `[H, D]` for x `[..., H, D]`, of any float dtype (a model that multiplies by 1 +
    weight adds the 1 beforehand).
    """
    return (functional.rms_norm(x.float(), (x.shape[-1],), None, eps) * weight.float()).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (norm of the sum, the sum); the sum is x + residual rounded to their dtype."""
    total = x + residual
    return rms_norm_reference(total, weight, eps), total
