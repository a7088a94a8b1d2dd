"""What a zstd file holds, frame after frame: the library's own reader takes one that was cut short for a whole one."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

PIECE = 2**17


class ZstdReader(io.RawIOBase):
    """Reads a file through the library `zstandard`. Raises EOFError where it ends within a frame."""

    def __init__(self, raw: BinaryIO, library: Any) -> None:
        self._raw = raw
        self._new = library.ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._rest = b""
        self._ready = b""

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase."""
        while not self._ready:
            compressed = self._rest or self._raw.read(PIECE)
            if not compressed:
                if self._frame is not None:
                    raise EOFError("it ends before its last frame does")
                return 0
            self._frame = self._frame or self._new()
            self._ready, self._rest = self._frame.decompress(compressed), b""
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size
