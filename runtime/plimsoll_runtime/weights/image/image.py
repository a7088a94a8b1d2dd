"""A memfd with a model's weights: it lives for as long as somebody has its descriptor or maps it."""

from __future__ import annotations

import fcntl
import os

from plimsoll_runtime.errors import MemoryLimitError
from plimsoll_runtime.weights.image.header import ROOT_BYTES, ImageHeader, decode, locate

F_SEAL_FUTURE_WRITE = 0x10
"""No new mapping may be written to (Linux 5.1)."""
LONGEST_NAME = 200
SECTOR = 512


class Image:
    """A model's weights as its decoder reads them. Processes that fill it or wake from it come and go."""

    def __init__(self, descriptor: int) -> None:
        """Own a descriptor, of `create` or from another process."""
        self._descriptor = descriptor

    @classmethod
    def create(cls, size: int, name: str) -> Image:
        """An empty one of at most `size` bytes, whose pages are taken as they are filled; `name` is for people.

        Raises MemoryLimitError where the system gives none.
        """
        short = name.encode(errors="replace")[:LONGEST_NAME].replace(b"\0", b"?")
        try:
            image = cls(os.memfd_create(f"plimsoll:{short.decode(errors='replace')}", _FLAGS))
        except OSError as error:
            raise MemoryLimitError(f"no memory for the weights of {name} can be had: {error}") from error
        try:
            os.ftruncate(image.descriptor, size)
        except OSError as error:
            image.close()
            raise MemoryLimitError(f"{size} bytes for the weights of {name} cannot be had: {error}") from error
        return image

    @property
    def descriptor(self) -> int:
        """The memfd."""
        return self._descriptor

    @property
    def size(self) -> int:
        """Bytes from its first to its last, taken or not."""
        return os.fstat(self._descriptor).st_size

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes now."""
        return os.fstat(self._descriptor).st_blocks * SECTOR

    def header(self) -> ImageHeader | None:
        """What it holds; None for one that nobody has filled to its end. Raises ModelError for one that is damaged."""
        found = locate(os.pread(self._descriptor, ROOT_BYTES, 0))
        if found is None:
            return None
        offset, length, digest = found
        return decode(os.pread(self._descriptor, length, offset), digest)

    def seal(self, size: int, *, read_only: bool) -> None:
        """Cut what is behind `size`, and let nobody change its size again; with `read_only` nor what is in it."""
        os.ftruncate(self._descriptor, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | (F_SEAL_FUTURE_WRITE if read_only else 0)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)

    def close(self) -> None:
        """Give the descriptor back: the memory is free once nobody else has it or maps it. May be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_FLAGS = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
