"""The exchange between the ranks of a parallel group, as decoders call it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Collectives(Protocol):
    """Operations that all ranks of a group call in the same order with tensors of the same shape."""

    def sum(self, partial: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors, in the same shape and dtype, and with the same bits on all ranks.

        The sum is computed in float32.
        """
