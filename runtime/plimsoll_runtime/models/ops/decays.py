"""How much of what a row adds is left at a later one."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor


def between(total: Tensor) -> Tensor:
    """Sums of log decays up to each row [..., Q] -> from row j to row i [..., i, j], 0 where j comes after i."""
    count = total.shape[-1]
    later = torch.ones(count, count, dtype=torch.bool, device=total.device).triu(1)
    return (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill_(later, -inf).exp_()
