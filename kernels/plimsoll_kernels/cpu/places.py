"""The memory of a decoder's weights: each is placed when it is created, always in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import allocate

Fill = Callable[[Tensor], object]


class Places(Protocol):
    """Memory for weights. If it is filled already (a weight image), `fill` is not called and only shapes are used."""

    copies: bool
    """Whether `keep` copies; then a kept tensor need not have memory of its own."""

    def place(self, shape: Sequence[int], dtype: torch.dtype, fill: Fill) -> Tensor:
        """Return memory of this shape, aligned to 64 bytes, which `fill` has written."""

    def keep(self, tensor: Tensor) -> Tensor:
        """Return a contiguous tensor with the same contents that the caller may keep: a copy if `copies`, else the
        tensor itself.
        """


class OwnMemory:
    """Memory of the process itself, on huge pages."""

    copies = False

    def place(self, shape: Sequence[int], dtype: torch.dtype, fill: Fill) -> Tensor:
        placed = allocate(shape, dtype)
        fill(placed)
        return placed

    def keep(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself."""
        return tensor


OWN = OwnMemory()
