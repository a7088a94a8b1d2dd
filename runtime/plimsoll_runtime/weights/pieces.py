"""Tensors that are converted some rows at a time, so that what is made on the way never exists as a whole."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

PIECE = 2**21
"""Elements decoded at a time: the float32 copy of a large embedding never exists as a whole. Larger pieces leave the
processor's caches, smaller ones pay for more calls (a Q4_K_M of 270M in bfloat16: 3.0 s so, 4.7 with 2**23)."""


def in_pieces(shape: tuple[int, ...], dtype: torch.dtype, decoded: Callable[[int, int], Tensor]) -> Tensor:
    """A tensor of its own memory; `decoded` gives its rows from one to another, all dimensions but the last as one."""
    out = torch.empty(shape, dtype=dtype)
    if out.numel():
        rows = out.view(-1, shape[-1])
        step = max(1, PIECE // shape[-1])
        for first in range(0, len(rows), step):
            last = min(first + step, len(rows))
            rows[first:last] = decoded(first, last)
    return out
