"""Memory on huge pages, where the kernel has them.

Weights stream by and blocks of a cache lie anywhere: on pages of 4 KiB each of them costs address translations, which
are dearer still in a virtual machine (attention over scattered blocks was measured three times slower).
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
"""The name of the threads that take pages ahead."""

_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def allocate(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros of this shape; their pages are taken when they are first written."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < HUGE_PAGE:
        return torch.zeros(*shape, dtype=dtype)
    memory = mmap.mmap(-1, allocated(size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(*shape)


def allocated(size: int) -> int:
    """Bytes that `allocate` takes for so many."""
    return size if size < HUGE_PAGE else -(-size // HUGE_PAGE) * HUGE_PAGE


class Populating:
    """The thread of `populate`."""

    def __init__(self, tensor: Tensor) -> None:
        self._stopped = threading.Event()
        arguments = (tensor, self._stopped)
        self._thread = threading.Thread(target=_populate, args=arguments, name=POPULATE, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more pages: on return the thread is over."""
        self._stopped.set()
        self._thread.join()


def populate(tensor: Tensor) -> Populating:
    """Take a contiguous tensor's pages ahead of their first use: a thread that gives way to all others goes through it.

    What is written meanwhile stays. Pages that cannot be taken are left to be taken when they are first written.
    """
    return Populating(tensor)


def give_back(tensor: Tensor) -> None:
    """Let the kernel have the pages that lie wholly in a contiguous tensor, which reads as zeros there from now on."""
    begin, size = _whole_pages(tensor.data_ptr(), tensor.nbytes)
    if size > 0 and _madvise(begin, size, mmap.MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), f"{size} bytes cannot be given back: {os.strerror(ctypes.get_errno())}")


class Buffer:
    """Memory that calls use one after the other; it grows to what the largest of them needs."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    @staticmethod
    def nbytes(size: int) -> int:
        """Bytes that a buffer takes whose largest call needs `size`."""
        return allocated(size + ALIGNMENT)

    def pointer(self, size: int) -> int:
        """The address of at least `size` bytes, aligned to 64."""
        if self._memory.numel() < size + ALIGNMENT:
            self._memory = allocate([size + ALIGNMENT], torch.uint8)
        return -(-self._memory.data_ptr() // ALIGNMENT) * ALIGNMENT

    def floats(self, rows: int, columns: int) -> Tensor:
        """float32 `[rows, columns]`, with whatever the last call left there."""
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
            logger.debug("the cache's pages are taken when they are written, not ahead of it: %s", reason)
            return


def _whole_pages(address: int, size: int) -> tuple[int, int]:
    """The first page that lies wholly in some memory, and the bytes of all of them; at most 0 where there is none."""
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    return begin, (address + size) // mmap.PAGESIZE * mmap.PAGESIZE - begin
