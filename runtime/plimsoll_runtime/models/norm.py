"""Root mean square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_kernels.rms_norm.op import rms_norm
from plimsoll_runtime.models.spec import AttentionShape, DecoderSpec


class RmsNorm:
    """x / rms(x) * weight over the last dimension; the offset that Gemma adds is in the weight already."""

    def __init__(self, weight: Tensor, eps: float, *, offset: float = 0.0) -> None:
        self._weight = weight.float() + offset
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D], computed in float32 and rounded once."""
        if x.is_cuda:
            return rms_norm(x, self._weight, self._eps)
        return functional.rms_norm(x.float(), (x.shape[-1],), self._weight, self._eps).to(x.dtype)


class QkNorm:
    """An RMS norm over each head, one weight for the queries and one for the keys, in one pass over both."""

    def __init__(self, spec: DecoderSpec, shape: AttentionShape, query: Tensor, key: Tensor) -> None:
        weights = [query.expand(shape.heads, -1), key.expand(shape.kv_heads, -1)]
        self._weight = torch.cat(weights).float() + spec.norm_offset
        self._eps = spec.norm_eps

    def __call__(self, heads: Tensor) -> Tensor:
        """[T, heads + kv_heads, D] -> the same shape."""
        if heads.is_cuda:
            return rms_norm(heads, self._weight, self._eps)
        normed = functional.rms_norm(heads.float(), (heads.shape[-1],), None, self._eps)
        return (normed * self._weight).to(heads.dtype)
