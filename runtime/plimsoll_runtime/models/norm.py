"""Root mean square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_kernels.rms_norm.op import add_rms_norm, rms_norm
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

    def of_sum(self, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """(norm of the sum, the sum), in one pass on a GPU."""
        if x.is_cuda:
            return add_rms_norm(x, added, self._weight, self._eps)
        total = x + added
        return self(total), total


class ResidualNorm:
    """The norm at the head of a block, together with the residual sum before it."""

    def __init__(self, weight: Tensor, eps: float, *, offset: float = 0.0) -> None:
        self._norm = RmsNorm(weight, eps, offset=offset)

    def __call__(self, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """(norm of the sum, the sum x + added), both [T, D]; None: nothing has been added yet."""
        if added is None:
            return self._norm(x), x
        return self._norm.of_sum(x, added)


class QkNorm:
    """An RMS norm over each head, one weight for the queries and one for the keys, in one pass over both.

    `weight` [heads + kv_heads, D] (the offset is in it already) and `eps`, for who computes the norm by himself.
    """

    def __init__(self, spec: DecoderSpec, shape: AttentionShape, query: Tensor, key: Tensor) -> None:
        weights = [query.expand(shape.heads, -1), key.expand(shape.kv_heads, -1)]
        self.weight = torch.cat(weights).float() + spec.norm_offset
        self.eps = spec.norm_eps

    def __call__(self, heads: Tensor) -> Tensor:
        """[T, heads + kv_heads, D] -> the same shape."""
        if heads.is_cuda:
            return rms_norm(heads, self.weight, self.eps)
        normed = functional.rms_norm(heads.float(), (heads.shape[-1],), None, self.eps)
        return (normed * self.weight).to(heads.dtype)
