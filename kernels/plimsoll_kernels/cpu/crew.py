"""The threads that the kernels of this process compute with: they can leave cores to others while they work."""

from __future__ import annotations

from plimsoll_kernels.cpu.library import library


def leave(cores: int) -> None:
    """Leave so many cores to others from now on, as far as there are threads beside the one that calls a kernel.

    They finish what they are at and wait until fewer are left to others; nothing that is computed changes. Whoever
    computes beside kernels that have all cores of a machine gains by it: a thread that loses its core with work in hand
    holds all of them up until it has one again. One number for the process: the latest word counts. Without kernels it
    does nothing.
    """
    found = library()
    if found is not None:
        found.plimsoll_leave(cores)
