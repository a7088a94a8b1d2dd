"""The norm: checks arguments, then runs kernel or reference."""

from __future__ import annotations

from torch import Tensor

from plimsoll_kernels.dispatch import Implementation, check_floats, check_shape, use_triton
from plimsoll_kernels.rms_norm.reference import add_rms_norm_reference, rms_norm_reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, implementation: Implementation = "auto") -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32, rounded once to x's dtype.

    x `[..., D]`, weight `[D]`, or `[H, D]` for x `[..., H, D]` (a weight for each head), of any float dtype. Raises
    ValueError for wrong shapes and dtypes.
    """
    _check(x, weight)
    if not use_triton(implementation, x):
        return rms_norm_reference(x, weight, eps)
    from plimsoll_kernels.rms_norm.kernel import launch_rms_norm

    return launch_rms_norm(_rows(x, weight), None, weight.contiguous(), eps)[0].view(x.shape)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, implementation: Implementation = "auto"
) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(x + residual), x + residual): a decoder's residual sum and the norm after it in one pass."""
    _check(x, weight)
    check_floats(x=x, residual=residual)
    check_shape("residual", residual, *x.shape)
    if not use_triton(implementation, x):
        return add_rms_norm_reference(x, residual, weight, eps)
    from plimsoll_kernels.rms_norm.kernel import launch_rms_norm

    normed, total = launch_rms_norm(_rows(x, weight), _rows(residual, weight), weight.contiguous(), eps)
    return normed.view(x.shape), total.view(x.shape)


def _check(x: Tensor, weight: Tensor) -> None:
    check_floats(x=x)
    check_floats(weight=weight)
    check_shape("weight", weight, *x.shape[-2 if weight.dim() == 2 else -1 :])
    if weight.device != x.device:
        raise ValueError(f"weight is on {weight.device}, but x is on {x.device}")


def _rows(x: Tensor, weight: Tensor) -> Tensor:
    """Return x as `[A, B, D]`: unchanged if it has three dimensions, otherwise reshaped.

    The kernel is compiled for each B, which is a model's number of heads, or 1, and never the rows of a step.
    """
    return x if x.dim() == 3 else x.reshape(-1, x.shape[-2] if weight.dim() == 2 else 1, x.shape[-1])
