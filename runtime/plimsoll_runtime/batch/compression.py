"""Opens compressed files by their suffix."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import IO, Any, BinaryIO, Literal, cast

from plimsoll_runtime.errors import UsageError

PIECE = 2**17


class ZstdReader(io.RawIOBase):
    """Reads a zstd file through the library `zstandard`. Raises EOFError if the file ends within a frame."""

    def __init__(self, raw: BinaryIO, library: Any) -> None:
        self._raw = raw
        self._new = library.ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._rest = b""
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
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


Mode = Literal["rb", "wb"]
BUFFER = 2**16
DAMAGED: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""Exceptions that reading a damaged file raises, except zstd's own."""


def _gzip(raw: BinaryIO, mode: Mode) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(filename="", mode=mode, fileobj=raw, mtime=0))


def _zstd(raw: BinaryIO, mode: Mode) -> IO[bytes]:
    zstd = zstandard()
    if mode == "rb":
        return io.BufferedReader(ZstdReader(raw, zstd), BUFFER)
    return cast("IO[bytes]", zstd.ZstdCompressor().stream_writer(raw))


COMPRESSIONS: Mapping[str, Callable[[BinaryIO, Mode], IO[bytes]]] = {
    ".gz": _gzip,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _zstd,
}


def library(name: str, use: str) -> Any:
    """Import a module that only some kinds of file need. Raises UsageError, with the `use`, if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UsageError(f"{use} needs the library {package}; run pip install 'plimsoll-serving[batch]'") from error


def zstandard() -> Any:
    """Import the library. Raises UsageError if it is not installed."""
    return library("zstandard", ".zst")


def damage(compression: str) -> tuple[type[Exception], ...]:
    """Return the exceptions that reading a damaged file of this compression raises."""
    return (*DAMAGED, zstandard().ZstdError) if compression == ".zst" else DAMAGED


def wrapped(raw: BinaryIO, compression: str, mode: Mode) -> IO[bytes]:
    """Return a file that decompresses what is read from `raw` (mode "rb"), or compresses what is written to it ("wb");
    `raw` itself if `compression` is empty.
    """
    return COMPRESSIONS[compression](raw, mode) if compression else raw
