"""The grouped product in plain torch: one product for each group that has rows."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def grouped_product_reference(rows: Tensor, weights: Tensor, ends: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute y = x W^T + b with W and b of each row's group.

    rows: `[R, I]`, those of the first group, then those of the second, and so on.
    weights: `[G, O, I]`; bias: `[G, O]` or None.
    ends: int32 `[G]`, the index after the last row of each group; a group without rows has the end of the one before
      it.

    Computes in float32 and returns `[R, O]` in the dtype of rows. On a GPU this waits for the device.
    """
    out = torch.empty((len(rows), weights.shape[1]), dtype=rows.dtype, device=rows.device)
    for group, (first, end) in enumerate(pairwise([0, *ends.tolist()])):
        if first == end:
            continue
        wide = rows[first:end].float() @ weights[group].float().T
        out[first:end] = wide if bias is None else wide + bias[group].float()
    return out
