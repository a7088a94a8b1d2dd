"""Memory on huge pages, if the operating system supports them.

Weights are streamed and blocks of a cache are scattered: on pages of 4 KiB both cost many address translations, which
are even slower in a virtual machine (attention over scattered blocks was measured three times slower).
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import os
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

HUGE_PAGE = 2 << 20
PIECE = 2 * HUGE_PAGE
MADV_POPULATE_WRITE = 23
ALIGNMENT = 64
IDLE = 19
POPULATE = "populate"
"""The name of the threads that populate pages ahead of their use."""

_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def allocate(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros of this shape; their pages are taken when they are first written."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < HUGE_PAGE:
        return torch.zeros(*shape, dtype=dtype)
    memory = mmap.mmap(-1, allocated(size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(*shape)


def allocated(size: int) -> int:
    """Return the bytes that `allocate` takes for `size` bytes."""
    return size if size < HUGE_PAGE else -(-size // HUGE_PAGE) * HUGE_PAGE


class Populating:
    """Takes a contiguous tensor's pages ahead of their first use, in a thread of the lowest priority.

    Concurrent writes are kept. If pages cannot be taken, they are taken when they are first written.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._stopped = threading.Event()
        arguments = (tensor, self._stopped)
        self._thread = threading.Thread(target=_populate, args=arguments, name=POPULATE, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop taking pages; on return the thread has ended."""
        self._stopped.set()
        self._thread.join()


def give_back(tensor: Tensor) -> None:
    """Return the pages that are completely within a contiguous tensor to the system; they read as zeros afterwards."""
    begin, size = _whole_pages(tensor.data_ptr(), tensor.nbytes)
    if size > 0 and _madvise(begin, size, mmap.MADV_DONTNEED):
        raise OSError(
            ctypes.get_errno(), f"cannot return {size} bytes to the system: {os.strerror(ctypes.get_errno())}"
        )


class Buffer:
    """Memory that calls use in turn; it grows to the needs of the largest call."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    @staticmethod
    def nbytes(size: int) -> int:
        """Return the bytes of a buffer whose largest call needs `size`."""
        return allocated(size + ALIGNMENT)

    def pointer(self, size: int) -> int:
        """Return the address of at least `size` bytes, aligned to 64."""
        if self._memory.numel() < size + ALIGNMENT:
            self._memory = allocate([size + ALIGNMENT], torch.uint8)
        return -(-self._memory.data_ptr() // ALIGNMENT) * ALIGNMENT

    def floats(self, rows: int, columns: int) -> Tensor:
        """Return float32 `[rows, columns]` with undefined contents."""
        size = 4 * rows * columns
        skipped = self.pointer(size) - self._memory.data_ptr()
        return self._memory[skipped : skipped + size].view(torch.float32).view(rows, columns)


def _populate(tensor: Tensor, stopped: threading.Event) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), IDLE)
    for start in range(0, tensor.nbytes, PIECE):
        if stopped.is_set():
            return
        begin, size = _whole_pages(tensor.data_ptr() + start, min(PIECE + mmap.PAGESIZE, tensor.nbytes - start))
        if size > 0 and _madvise(begin, size, MADV_POPULATE_WRITE):
            reason = os.strerror(ctypes.get_errno())
            logger.debug(
                "the cache's pages are taken on first write, because they cannot be populated ahead: %s", reason
            )
            return


def _whole_pages(address: int, size: int) -> tuple[int, int]:
    """Return the address of the first page completely within some memory, and the bytes of all of them (at most 0 if
    none).
    """
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    return begin, (address + size) // mmap.PAGESIZE * mmap.PAGESIZE - begin
