"""The rotation in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_reference(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pair of dimensions i and i + R / 2 by the angle of the row's position, for i < R / 2.

    heads `[T, H, D]`, cos and sin `[T, R / 2]` with R <= D; dimensions from R on are copied. Computed in float32,
    rounded once to the heads' dtype.
    """
    half = cos.shape[-1]
    cos, sin = cos.float()[:, None], sin.float()[:, None]
    first, second = heads[..., :half].float(), heads[..., half : 2 * half].float()
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return torch.cat((turned.to(heads.dtype), heads[..., 2 * half :]), -1)
