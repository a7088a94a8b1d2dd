"""Memory that steps and tiles reuse."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Scratch:
    """Named buffers that only grow: fresh pages for each tile's scores would cost more than the scores."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor of unknown content, over the same memory as whatever else was taken by that name."""
        count = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < count:
            with torch.inference_mode(False):
                buffer = self._buffers[name, dtype] = torch.empty(count, dtype=dtype)
        return buffer[:count].view(shape)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(b.nbytes for b in self._buffers.values())
