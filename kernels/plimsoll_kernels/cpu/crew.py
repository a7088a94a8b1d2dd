"""The threads with which the kernels of this process compute. They can leave cores to other work."""

from __future__ import annotations

from plimsoll_kernels.cpu.library import library


def leave(cores: int) -> None:
    """Leave `cores` cores to other work from here on, as far as there are threads besides the caller of a kernel.

    These threads finish their current work and wait until fewer cores are left to others; results do not change. This
    helps work next to kernels that use all cores of a machine: a thread that loses its core in the middle of its work
    delays all of them until it gets one again. The number applies to the whole process; the last call counts. Without
    kernels it has no effect.
    """
    found = library()
    if found is not None:
        found.plimsoll_leave(cores)
