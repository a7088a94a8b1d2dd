"""Shared memory for the exchange between the ranks of each stage on this machine."""

from __future__ import annotations

import os

from plimsoll_kernels.cpu.exchange import MOST_RANKS, rounds_of, segment_bytes
from plimsoll_kernels.cpu.library import library
from plimsoll_runtime.parallel.layout import Layout


class StageSegments:
    """A file in memory for each stage of a generation's ranks on this machine."""

    def __init__(self, layout: Layout, here: range) -> None:
        """`here`: the ranks on this machine."""
        self._layout = layout
        self._here = here
        self._descriptors: dict[int, int] = {}

    def of(self, rank: int) -> int:
        """Return the descriptor for a rank's stage.

        The file is empty if the kernels cannot exchange, or if not all ranks of the stage are on this machine.
        """
        layout, stage, together = self._layout, self._layout.stage(rank), self._layout.together(rank)
        if stage not in self._descriptors:
            self._descriptors[stage] = os.memfd_create("plimsoll-exchange")
            is_here = self._here.start <= together.start and together.stop <= self._here.stop
            if is_here and 1 < layout.tensor <= MOST_RANKS and library() is not None:
                os.ftruncate(self._descriptors[stage], segment_bytes(layout.tensor))
        return self._descriptors[stage]

    def rounds(self, rank: int) -> int:
        """Return how many sums a rank has begun within steps of the CPU kernels; 0 if they are not counted."""
        descriptor = self.of(rank)
        if os.fstat(descriptor).st_size == 0:
            return 0
        return rounds_of(descriptor, self._layout.tensor)[self._layout.shard(rank)]

    def close(self) -> None:
        """Close all files. May be called again."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}
