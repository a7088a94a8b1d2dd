"""Sampling: checks arguments, then runs the Triton kernels, the C++ kernel or the reference."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.dispatch import Implementation, check_shape, use_triton
from plimsoll_kernels.sampling.masks import TokenMasks
from plimsoll_kernels.sampling.params import RowParams
from plimsoll_kernels.sampling.reference import sample_reference

MOST_TOKENS = 2**19


def sample(
    logits: Tensor,
    params: RowParams,
    uniform: Tensor,
    masks: TokenMasks | None = None,
    *,
    mass: Tensor | None = None,
    implementation: Implementation = "auto",
) -> tuple[Tensor, Tensor]:
    """Sample one token for each row by the row's parameters; return the row's largest logit and the token.

    logits float32 `[R, V]` with contiguous rows, uniform float64 `[R]` in [0, 1) -> float32 `[R]`, int64 `[R]`. The
    uniform number alone decides which token a row draws: the first, in the vocabulary's order, at which the cumulative
    weight of the tokens that the filters keep exceeds that share of it. Tokens with a logit of -infinity are never
    drawn, nor are those that `masks` forbid: they count for no filter and not for the largest logit. The logits may be
    changed.

    With `mass`, float64 `[R]` on the logits' device, the rows are the largest logits of longer rows, in the
    vocabulary's order: without top-k, top_p is a share of this mass (weights relative to the largest logit) instead of
    the row's. There must be enough of them. The Triton kernel does not support it.

    If a row's largest logit is not finite (NaN if any logit is), its token is undefined and the caller must reject the
    row. Raises ValueError for wrong shapes and dtypes.
    """
    _check(logits, params, uniform)
    if masks is not None:
        masks.check(logits)
    if mass is not None:
        _check_rows("mass", mass, torch.float64, len(logits), logits)
    if mass is None and use_triton(implementation, logits):
        from plimsoll_kernels.sampling.kernel import launch_sample

        return launch_sample(logits, params, uniform, masks)
    found = kernels(torch.float32) if implementation == "auto" and logits.device.type == "cpu" else None
    if found is None:
        return sample_reference(logits, params, uniform, masks, mass)
    from plimsoll_kernels.cpu.sampling import sample_rows

    return sample_rows(found, logits, params, uniform, masks, mass)


def _check(logits: Tensor, params: RowParams, uniform: Tensor) -> None:
    if logits.dim() != 2 or logits.dtype is not torch.float32 or logits.stride(-1) != 1:
        raise ValueError(f"logits must be float32 [R, V] with contiguous rows, got {logits.dtype} {list(logits.shape)}")
    rows, vocab = logits.shape
    if not 0 < vocab <= MOST_TOKENS:
        raise ValueError(f"the vocabulary must have 1 to {MOST_TOKENS} tokens, got {vocab}")
    if len(params) != rows or params.device != logits.device:
        raise ValueError(
            f"got {rows} rows of logits on {logits.device}, but parameters of {len(params)} on {params.device}"
        )
    _check_rows("uniform", uniform, torch.float64, rows, logits)


def _check_rows(name: str, tensor: Tensor, dtype: torch.dtype, rows: int, logits: Tensor) -> None:
    check_shape(name, tensor, rows)
    if tensor.dtype is not dtype or tensor.device != logits.device or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous {dtype} on {logits.device}, got {tensor.dtype} on {tensor.device}, "
            f"stride {tensor.stride(0)}"
        )
