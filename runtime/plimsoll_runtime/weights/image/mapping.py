"""An image's pages in this process's memory, on huge pages where the kernel can make them.

Shared memory has no huge pages unless somebody mounts it so. What lies at a multiple of 2 MiB can be put together
afterwards (MADV_COLLAPSE, Linux 6.1), and then whoever maps it at such an address reads it as fast as private memory.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import weakref

from plimsoll_kernels.cpu.huge_pages import HUGE_PAGE

logger = logging.getLogger(__name__)

MADV_COLLAPSE = 25
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
for _name in ("munmap", "mprotect", "madvise"):
    getattr(_libc, _name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, *([] if _name == "munmap" else [ctypes.c_int])]


class MappedImage:
    """`size` bytes of a descriptor from its first on, at `address`, until this object is gone."""

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        """Raises OSError where the kernel maps nothing."""
        # A reservation large enough to hold an aligned address; what is around the pages stays reserved with them.
        reserved = size + HUGE_PAGE
        start = _map(None, reserved, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        weakref.finalize(self, _libc.munmap, start, reserved).atexit = False
        self.size = size
        self.address = -(-start // HUGE_PAGE) * HUGE_PAGE
        rights = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        _map(self.address, size, rights, mmap.MAP_SHARED | _MAP_FIXED, descriptor)

    def buffer(self) -> ctypes.Array[ctypes.c_char]:
        """Its bytes; whoever holds them holds the mapping."""
        found = (ctypes.c_char * self.size).from_address(self.address)
        weakref.finalize(found, _let_go, self).atexit = False
        return found

    def collapse(self, size: int) -> bool:
        """Put the first `size` bytes, as far as they are whole huge pages, on huge pages; whether that could be."""
        whole = size // HUGE_PAGE * HUGE_PAGE
        if whole and _libc.madvise(self.address, whole, MADV_COLLAPSE):
            reason = os.strerror(ctypes.get_errno())
            logger.debug("%d bytes of weights lie on pages of 4 KiB, not of 2 MiB: %s", whole, reason)
            return False
        return True

    def protect(self) -> None:
        """Let nothing be written from now on. Raises OSError."""
        if _libc.mprotect(self.address, self.size, mmap.PROT_READ):
            raise _error("the weights cannot be made read-only")


def _map(address: int | None, size: int, rights: int, flags: int, descriptor: int) -> int:
    found = _libc.mmap(address, size, rights, flags, descriptor, 0)
    if found == _FAILED or found is None:
        raise _error(f"{size} bytes cannot be mapped")
    return int(found)


def _let_go(mapping: MappedImage) -> None:
    """Nothing is to be done: that the finalizer held the mapping until now was its purpose."""


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
