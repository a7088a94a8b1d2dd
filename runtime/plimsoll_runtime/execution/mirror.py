"""Kept block tables on a device as well, where kernels read them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from plimsoll_runtime.execution.kept_tables import KeptTables
from plimsoll_runtime.execution.outbox import Outbox, Parcel


class Mirror:
    """The rows of a group's tables, int32 on a device, to which each step sends what was written since the last.

    They stay where they are, so that graphs can read and write them. Behind them is a row that belongs to nobody, all
    of it block 0, from `nobody` on.
    """

    def __init__(self, kept: KeptTables, device: torch.device) -> None:
        """The one mirror of tables that note what is written."""
        self._kept = kept
        self._missing: list[tuple[int, int]] = []
        self.nobody = len(kept.blocks)
        self.blocks = torch.zeros(self.nobody + kept.width, dtype=torch.int32, device=device)

    def missing(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The places [N] of what was written and is not there yet, and the blocks that belong there [N].

        They are missing until somebody says that they are `told`: a pass that broke off may not have written them.
        """
        self._missing += self._kept.take_written()
        begins = np.array([begin for begin, _ in self._missing], dtype=np.int64)
        if any(end - begin != 1 for begin, end in self._missing):
            begins = np.concatenate([np.arange(begin, end) for begin, end in self._missing])
        return begins, np.frombuffer(self._kept.blocks, np.int32)[begins].astype(np.int64)

    def told(self) -> None:
        """What was missing is there, or will be when what was launched so far is done."""
        self._missing.clear()

    def add_to(self, outbox: Outbox) -> Parcel | None:
        """Have what is missing sent with the rest of a step; None where nothing is."""
        places, blocks = self.missing()
        return outbox.add(np.concatenate([places, blocks])) if places.size else None

    def receive(self, parcel: Parcel | None) -> None:
        """Write what was sent."""
        if parcel is not None:
            places, blocks = parcel.there.view(2, -1).unbind()
            self.blocks.index_copy_(0, places, blocks.to(torch.int32))
        self.told()

    def check_integrity(self) -> None:
        """Raises AssertionError where what is on the device, or is still missing there, is not what is kept. It waits
        for the device.
        """
        there = self.blocks.cpu().numpy()
        places, blocks = self.missing()
        there[places] = blocks
        assert there[: self.nobody].tolist() == list(self._kept.blocks), "the device has other tables"
        assert not there[self.nobody :].any(), "the device has blocks where nobody's are"
