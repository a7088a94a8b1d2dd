"""Opens compressed files by their suffix."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
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


def _bzip2(raw: BinaryIO, mode: Mode) -> IO[bytes]:
    return bz2.BZ2File(raw, mode)


def _xz(raw: BinaryIO, mode: Mode) -> IO[bytes]:
    return lzma.LZMAFile(raw, mode)


def _zstd(raw: BinaryIO, mode: Mode) -> IO[bytes]:
    library = zstandard()
    if mode == "rb":
        return io.BufferedReader(ZstdReader(raw, library), BUFFER)
    return cast("IO[bytes]", library.ZstdCompressor().stream_writer(raw))


COMPRESSIONS: Mapping[str, Callable[[BinaryIO, Mode], IO[bytes]]] = {
    ".gz": _gzip,
    ".bz2": _bzip2,
    ".xz": _xz,
    ".zst": _zstd,
}


def zstandard() -> Any:
    """Import the library. Raises UsageError if it is not installed."""
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise UsageError(".zst needs the library zstandard; run pip install 'plimsoll-serving[batch]'") from error


def damage(compression: str) -> tuple[type[Exception], ...]:
    """Return the exceptions that reading a damaged file of this compression raises."""
    return (*DAMAGED, zstandard().ZstdError) if compression == ".zst" else DAMAGED


def wrapped(raw: BinaryIO, compression: str, mode: Mode) -> IO[bytes]:
    """Return `raw` with its compression applied, or `raw` itself if `compression` is empty."""
    return COMPRESSIONS[compression](raw, mode) if compression else raw


def check_compression(path: Path, compression: str) -> None:
    """Raise UsageError if the library for a compression is missing."""
    if compression == ".zst":
        try:
            zstandard()
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
