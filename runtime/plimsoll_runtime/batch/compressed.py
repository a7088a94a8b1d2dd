"""Files that may be compressed, by their suffix."""

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

from plimsoll_runtime.batch.zstd import ZstdReader
from plimsoll_runtime.errors import UsageError

Mode = Literal["rb", "wb"]
BUFFER = 2**16
DAMAGED: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""What reading a damaged file raises, all but what zstd's library does."""


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
    """The library. Raises UsageError where it is not installed."""
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise UsageError(".zst needs the library zstandard: pip install 'plimsoll-serving[batch]'") from error


def damage(compression: str) -> tuple[type[Exception], ...]:
    """What reading a damaged file of this compression raises."""
    return (*DAMAGED, zstandard().ZstdError) if compression == ".zst" else DAMAGED


def wrapped(raw: BinaryIO, compression: str, mode: Mode) -> IO[bytes]:
    """What an open file holds, as it was before it was compressed; the file itself where nothing compresses it."""
    return COMPRESSIONS[compression](raw, mode) if compression else raw


def check_compression(path: Path, compression: str) -> None:
    """Raises UsageError where the library for it is missing, before any work."""
    if compression == ".zst":
        try:
            zstandard()
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
