"""The sampling parameters of each row of logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = {"temperature": torch.float32, "top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}
SMALLEST_TEMPERATURE = torch.finfo(torch.float32).tiny
"""The smallest number whose reciprocal is still a float32."""


@dataclass(frozen=True, slots=True)
class RowParams:
    """Parameters of R rows, contiguous and on the logits' device.

    - `temperature`: float32 `[R]`; 0 (and all below `SMALLEST_TEMPERATURE`) takes the largest logit.
    - `top_k`: int32 `[R]`, the number of most likely tokens that stay; 0, or at least the vocabulary's size: all.
    - `top_p`: float32 `[R]`: of those, the fewest whose renormalised mass reaches it stay; 1: all.
    - `min_p`: float32 `[R]`: of those, tokens less likely than this times the most likely token are removed; 0: none.

    Tokens are in the order of their logits; of equal ones the first in the vocabulary counts as more likely.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def __post_init__(self) -> None:
        """Raises ValueError if they do not fit each other: once, instead of in every step that uses them."""
        for name, dtype in DTYPES.items():
            tensor: Tensor = getattr(self, name)
            if tensor.dtype is not dtype or tensor.device != self.device or not tensor.is_contiguous():
                raise ValueError(
                    f"{name} must be contiguous {dtype} on {self.device}, got {tensor.dtype} on {tensor.device}, "
                    f"stride {tensor.stride()}"
                )
            if tensor.shape != self.temperature.shape or tensor.dim() != 1:
                raise ValueError(f"{name} must be [R] like temperature, got {list(tensor.shape)}")

    @property
    def device(self) -> torch.device:
        """The device of all parameters."""
        return self.temperature.device

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.temperature.shape[0]

    def rows(self, chosen: Tensor) -> RowParams:
        """Return the parameters of some rows."""
        return RowParams(self.temperature[chosen], self.top_k[chosen], self.top_p[chosen], self.min_p[chosen])
