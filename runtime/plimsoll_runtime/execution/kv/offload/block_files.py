"""KV blocks as files: one for each, named by the block's name, whole or not there at all.

A file begins with a header that repeats what it is: format, fingerprint of the engine that wrote it, block name,
length, checksum. Whatever does not agree is no block of ours. Nothing is flushed to the disk by force: a file that a
crash has cut short fails its checksum, and what is lost is cache.

Every engine works in a subfolder of its own, held by a lock, so that several may be given one folder. What another user
has put there, folder or link, is left alone: it could be made to be read, or written through.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import zlib
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from plimsoll_runtime.utils import folder_lock

logger = logging.getLogger(__name__)

MAGIC = b"plimsoll-kv-3\0\0\0"
HEADER = struct.Struct("<16s32s33sQI")
NAME_BYTES = 33
"""Names are filled up with zeros: the engine puts a group's number behind the hash of a prefix, but for the first."""
PREFIX = "plimsoll-kv-"
SUBFOLDER = re.compile(rf"{PREFIX}[0-9a-f]{{16}}-\d+")
SUFFIX = ".kv"
DRAFT = "draft"
LOCK = "lock"


class CorruptBlockError(Exception):
    """A file does not hold what its name says."""


class MissingBlockError(FileNotFoundError):
    """There is no file for a block, or no longer."""


class _Header(NamedTuple):
    magic: bytes
    fingerprint: bytes
    name: bytes
    size: int
    checksum: int


class BlockFolder:
    """The blocks of one engine under `root`; `fingerprint` (32 bytes) says whose blocks they can be.

    What an earlier engine of the same fingerprint has left is taken over. What others of this user left, and no engine
    has open, is deleted, so that only engines that run take space. Raises OSError where the folder cannot be used.
    """

    def __init__(self, root: Path, fingerprint: bytes) -> None:
        self._fingerprint = fingerprint
        root.mkdir(parents=True, exist_ok=True)
        self.path, self._lock = _claim(root, PREFIX + fingerprint.hex()[:16])
        (self.path / DRAFT).unlink(missing_ok=True)
        for other in root.iterdir():
            if other != self.path and SUBFOLDER.fullmatch(other.name) and folder_lock.is_ours(other):
                _delete_unless_open(other)

    def file_bytes(self, size: int) -> int:
        """What a block of so many bytes takes on this disk: header and all, in whole blocks of the file system."""
        unit = os.statvfs(self.path).f_frsize
        return -(-(HEADER.size + size) // unit) * unit

    def names(self) -> list[bytes]:
        """The names of all blocks, least recently used first."""
        found = []
        for entry in os.scandir(self.path):
            if entry.name.endswith(SUFFIX):
                with suppress(ValueError, FileNotFoundError):
                    found.append((entry.stat().st_mtime_ns, bytes.fromhex(entry.name.removesuffix(SUFFIX))))
        return [name for _, name in sorted(found)]

    def write(self, name: bytes, data: memoryview) -> None:
        """Keep a block. Raises OSError, and then it is not kept."""
        header = HEADER.pack(MAGIC, self._fingerprint, name, len(data), zlib.crc32(data))
        draft = self.path / DRAFT
        with open(draft, "wb", buffering=0, opener=_private) as file:
            rest = [memoryview(header), data]
            while rest:
                written = os.writev(file.fileno(), rest)
                while rest and written >= len(rest[0]):
                    written -= len(rest.pop(0))
                if rest:
                    rest[0] = rest[0][written:]
        draft.rename(self._file(name))

    def read(self, name: bytes, into: memoryview) -> None:
        """Fill a buffer with a block.

        Raises MissingBlockError, another OSError or CorruptBlockError; the buffer then holds anything.
        """
        file = self._file(name)
        start = bytearray(HEADER.size)
        with _open(file) as opened:
            size = os.readv(opened.fileno(), [start, into])
            while size < HEADER.size + len(into):
                more = os.readv(opened.fileno(), [into[max(0, size - HEADER.size) :]]) if size >= HEADER.size else 0
                if not more:
                    raise CorruptBlockError(f"{file} is cut short")
                size += more
        header = _Header(*HEADER.unpack(start))
        wanted = _Header(MAGIC, self._fingerprint, name.ljust(NAME_BYTES, b"\0"), len(into), zlib.crc32(into))
        for field, found, right in zip(_Header._fields, header, wanted, strict=True):
            if found != right:
                raise CorruptBlockError(f"{file} has another {field} than it should")
        with suppress(OSError):
            # Only the order of last use is lost where this fails.
            os.utime(file)

    def delete(self, name: bytes) -> None:
        """Keep a block no longer. Raises OSError."""
        self._file(name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Keep no block any longer. Raises OSError once all of them have been tried."""
        failure = None
        for entry in folder_lock.entries(self.path):
            if entry.name.endswith(SUFFIX):
                try:
                    Path(entry.path).unlink(missing_ok=True)
                except OSError as error:
                    failure = error
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Leave the blocks to the next engine."""
        os.close(self._lock)

    def _file(self, name: bytes) -> Path:
        return self.path / f"{name.hex()}{SUFFIX}"


def _open(file: Path) -> FileIO:
    try:
        return file.open("rb", buffering=0)
    except FileNotFoundError as error:
        raise MissingBlockError(error.errno, error.strerror, str(file)) from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _claim(root: Path, stem: str) -> tuple[Path, int]:
    """The first subfolder of this stem that is ours and that nobody has open, and the lock that now holds it."""
    number = 0
    while True:
        path = root / f"{stem}-{number}"
        if _make(path):
            try:
                held = folder_lock.lock(path, LOCK, make=True)
            except FileNotFoundError:
                # Another engine, which took it for left behind, has just deleted it: it can be made anew.
                continue
            if held is not None:
                return path, held
        number += 1


def _make(path: Path) -> bool:
    """Make a folder for its owner alone, unless it is there; whether it is ours."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return folder_lock.is_ours(path)
    return True


def _delete_unless_open(path: Path) -> None:
    """What cannot be deleted stays, with a warning: it is no reason to do without the disk."""
    try:
        held = folder_lock.lock(path, LOCK, make=True)
        if held is None:
            return
        try:
            folder_lock.remove(path, LOCK)
        finally:
            os.close(held)
    except FileNotFoundError:
        # Another engine that starts was faster.
        return
    except OSError as error:
        logger.warning("%s is left of another engine and cannot be deleted: %s", path, error)
