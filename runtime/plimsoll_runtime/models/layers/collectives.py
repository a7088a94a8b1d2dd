"""The exchange between the ranks of a parallel group, as decoders call it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Collectives(Protocol):
    """Operations that all tensor-parallel ranks call in the same order with tensors of the same shape, and the values
    that pass between the stages of a pipeline.
    """

    @property
    def exchange(self) -> int | None:
        """Address of the exchange (`plimsoll_kernels.cpu.exchange`) that CPU kernels call themselves; None without
        one.
        """

    def sum(self, partial: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors, in the same shape and dtype, and with the same bits on all ranks.

        The sum is computed in float32. If there is too little memory for it, the rank has not joined the exchange.
        """

    def receive(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the values [rows, columns] that the stage before has sent for this step, on a device."""

    def send(self, values: Tensor) -> None:
        """Send values [rows, columns] to the stage after, without waiting for it. They must not change later."""

    def summed(self, count: int) -> None:
        """Count sums that CPU kernels have made through `exchange`."""
