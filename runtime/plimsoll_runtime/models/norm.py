"""Root mean square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


class RmsNorm:
    """x / rms(x) * weight over the last dimension; the offset that Gemma adds is in the weight already."""

    def __init__(self, weight: Tensor, eps: float, *, offset: float = 0.0) -> None:
        self._weight = weight.float() + offset
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D], computed in float32 and rounded once."""
        return functional.rms_norm(x.float(), (x.shape[-1],), self._weight, self._eps).to(x.dtype)
