"""Kept block tables on a device as well, where kernels read them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.execution.kept_tables import KeptTables
from plimsoll_runtime.execution.sent import sent


class Mirror:
    """The rows of a group's tables, int32 on a device, to which each step sends what was written since the last."""

    def __init__(self, kept: KeptTables, device: torch.device) -> None:
        """The one mirror of tables that note what is written."""
        self._kept = kept
        self._device = device
        self._blocks = torch.zeros(0, dtype=torch.int32, device=device)

    def current(self) -> Tensor:
        """The same numbers as in the tables' `blocks`, until the next call. All are sent where rows became longer."""
        blocks, written = np.frombuffer(self._kept.blocks, np.int32), self._kept.take_written()
        if self._blocks.numel() != blocks.size:
            self._blocks = sent(blocks.copy(), self._device)
        elif written:
            places = np.concatenate([np.arange(begin, end) for begin, end in written])
            to, values = sent(np.stack([places, blocks[places]]), self._device).unbind()
            self._blocks.index_copy_(0, to, values.to(torch.int32))
        return self._blocks

    def check_integrity(self) -> None:
        """Raises AssertionError where what is on the device is not what is kept. It waits for the device."""
        assert self.current().tolist() == list(self._kept.blocks), "the device has other tables"
