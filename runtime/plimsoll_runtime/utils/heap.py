"""When the C library gives freed memory back, and how often Python searches its objects for cycles.

glibc gives large blocks pages of their own, and "large" grows with each such block that is freed, up to 32 MiB. While
weights are read, what is converted and joined then lies between what is packed and kept, and leaves holes that nothing
fits into: of a mixture of 16 experts of 14 MiB a layer a process kept 1.25 to 1.32 times the weights.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD."""
LARGE = 2**20
"""Bytes of a block that gets pages of its own where it is to be kept."""
GROWN = 2**25
"""What glibc's own threshold ends at, for blocks that come and go: they are not to be mapped anew each time."""
YOUNG = 20_000
"""New objects after which Python searches the youngest for cycles, while that is to come seldom."""


@contextlib.contextmanager
def own_pages() -> Iterator[None]:
    """Large blocks that are allocated within it lie apart from the heap. Without glibc it does nothing."""
    _set(LARGE)
    try:
        yield
    finally:
        _set(GROWN)


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """While the block runs, Python searches for cycles seldom, and only among objects that are made in it.

    It used to go through all that torch's modules hold again and again, which was half of what a batch of short rows
    cost beside computing.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def give_back() -> None:
    """Pages of the heap that hold nothing go back to the system, wherever they lie. Without glibc it does nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _set(large: int) -> None:
    """glibc trims its heap at twice that, as it does while it adjusts both by itself."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, large)
        mallopt(TRIM_THRESHOLD, 2 * large)
