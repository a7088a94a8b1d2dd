"""Where a decoder's weights lie: each asks for its place when it is made, always in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import allocate

Fill = Callable[[Tensor], object]


class Places(Protocol):
    """Memory for weights. Where it is filled already, nothing of what would be put there is looked at but its shape."""

    copies: bool
    """Whether `keep` copies: then what is kept need have no memory of its own."""

    def place(self, shape: Sequence[int], dtype: torch.dtype, fill: Fill) -> Tensor:
        """Memory of this shape, aligned to 64 bytes, which `fill` has written to."""

    def keep(self, tensor: Tensor) -> Tensor:
        """A contiguous tensor that is kept as it is."""


class OwnMemory:
    """Memory of the process's own, on huge pages: see Places."""

    copies = False

    def place(self, shape: Sequence[int], dtype: torch.dtype, fill: Fill) -> Tensor:
        """See Places."""
        placed = allocate(shape, dtype)
        fill(placed)
        return placed

    def keep(self, tensor: Tensor) -> Tensor:
        """See Places: the tensor itself."""
        return tensor


OWN = OwnMemory()
