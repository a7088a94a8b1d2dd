"""Exchanges of small arrays between ranks, in which each rank may report that it has failed.

A rank without memory for a step cannot know which exchanges the others will make: later ones depend on the results of
earlier ones. So it joins the next one with a mark, and all ranks break the step off after that one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError

Floats = NDArray[np.float32]
FAILED = -1.0
"""The first number of a rank that has failed. Other ranks' first numbers are not negative."""


class Adding(Protocol):
    """Sums over some ranks. They may be fewer than all of a group."""

    @property
    def device(self) -> torch.device:
        """The device of the tensors to add."""

    def add_up(self, part: Tensor) -> None:
        """Replace a contiguous float32 tensor by the sum of the ranks' tensors, with the same bits on all of them."""


class FlaggedExchange:
    """The exchanges of one of `ranks` ranks in a step.

    Call `expect` as soon as the size of the next exchange is known and before anything that may lack memory, so that
    `fail` can join it.
    """

    def __init__(self, group: Adding, ranks: int, rank: int) -> None:
        self._group = group
        self._ranks = ranks
        self._rank = rank
        self._expected = 0

    @property
    def device(self) -> torch.device:
        """The device of tensors for `add_up`."""
        return self._group.device

    def expect(self, size: int) -> None:
        """State the numbers of a rank in the next exchange of this step; 0: there is none."""
        self._expected = size

    def gathered(self, own: Floats) -> Floats:
        """Return the numbers of all ranks, `[ranks, size]`, with zeros behind the numbers of ranks that have fewer. The
        first number must not be negative.

        Raises StepMemoryError if another rank has failed.
        """
        numbers = torch.zeros(self._ranks, self._expected, device=self._group.device)
        numbers[self._rank, : len(own)] = torch.from_numpy(own)
        self._group.add_up(numbers)
        self._expected = 0
        found: Floats = numbers.cpu().numpy()
        failed = (found[:, 0] == FAILED).nonzero()[0].tolist()
        if failed:
            raise StepMemoryError(f"rank {failed[0]} has too little memory for this step")
        return found

    def agree(self) -> None:
        """Wait until all ranks have come so far. Raises StepMemoryError if one of them has failed."""
        self.gathered(np.zeros(1, dtype=np.float32))

    def add_up(self, part: Tensor) -> None:
        """See `Adding`. Only after `agree`, and with memory that was allocated before it: this cannot be broken off."""
        self._group.add_up(part)

    def fail(self) -> None:
        """Join the exchange that the other ranks wait for, if there is one, and break off the step on all of them."""
        if self._expected:
            numbers = torch.zeros(self._ranks, self._expected, device=self._group.device)
            numbers[self._rank, 0] = FAILED
            self._expected = 0
            self._group.add_up(numbers)
