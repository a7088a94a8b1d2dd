"""Controls when glibc returns freed memory to the system, and how often Python's garbage collector runs.

glibc allocates large blocks in separate pages, and its threshold for "large" grows with each such block that is freed,
up to 32 MiB. While weights load, temporary tensors are then allocated between tensors that stay, and leave holes that
nothing fits into: with a mixture of 16 experts of 14 MiB per layer, a process used 1.25 to 1.32 times the memory of the
weights.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD."""
LARGE = 2**20
"""Bytes above which a block that stays gets separate pages."""
GROWN = 2**25
"""Upper end of glibc's own threshold, for temporary blocks, which should not be mapped again each time."""
YOUNG = 20_000
"""Number of new objects after which Python collects the youngest generation, within `seldom_collected`."""


@contextlib.contextmanager
def own_pages() -> Iterator[None]:
    """Allocate large blocks apart from the heap within the context. Without glibc it has no effect."""
    _set(LARGE)
    try:
        yield
    finally:
        _set(GROWN)


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Run Python's garbage collector rarely within the context, and only on objects created in it.

    Otherwise the collector repeatedly visits all objects of torch's modules, which took half of the time of a batch of
    short rows apart from computing.
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
    """Return all unused heap pages to the system. Without glibc it has no effect."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _set(large: int) -> None:
    """Set glibc's thresholds. Its heap is trimmed at twice the value, like glibc's own adjustment does."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, large)
        mallopt(TRIM_THRESHOLD, 2 * large)
