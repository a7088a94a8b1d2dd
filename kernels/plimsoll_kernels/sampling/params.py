"""What each row of logits is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_TEMPERATURE = torch.finfo(torch.float32).tiny
"""Whose reciprocal is still a float32."""


@dataclass(frozen=True, slots=True)
class RowParams:
    """Parameters of R rows, contiguous and on the logits' device.

    - `temperature`: float32 `[R]`; 0 (and all below `SMALLEST_TEMPERATURE`) takes the largest logit.
    - `top_k`: int32 `[R]`, how many of the most likely tokens stay; 0, or the vocabulary's size and more: all.
    - `top_p`: float32 `[R]`: of those, the fewest whose renormalised mass reaches it stay; 1: all.
    - `min_p`: float32 `[R]`: of those, what is less likely than this times the most likely token goes; 0: nothing.

    Tokens are in the order of their logits; of equal ones the first in the vocabulary counts as more likely.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def rows(self, chosen: Tensor) -> RowParams:
        """Those of some rows."""
        return RowParams(self.temperature[chosen], self.top_k[chosen], self.top_p[chosen], self.min_p[chosen])
