"""KV blocks as files: one for each block, named by its hash, either complete or absent.

A file begins with a header: format, fingerprint of the engine that wrote it, block hash, length, checksum. A file whose
header does not match is not used. Nothing is flushed to the disk by force: a file that a crash has truncated fails its
checksum, and only cache is lost.

Every engine works in a subfolder of its own, held by a lock, so several engines may share one folder. Folders and links
of other users are not touched, because reading or writing through them could be an attack.
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
"""The bytes of a name in a header, padded with zeros. A name is a hash of 32 bytes, to which the engine appends a byte
with the number of the cache group, except for the first group.
"""
PREFIX = "plimsoll-kv-"
SUBFOLDER = re.compile(rf"{PREFIX}[0-9a-f]{{16}}-\d+")
SUFFIX = ".kv"
DRAFT = "draft"
LOCK = "lock"


class CorruptBlockError(Exception):
    """A block's file is truncated, or its header does not match its name or its contents."""


class MissingBlockError(FileNotFoundError):
    """There is no file for a block, or it was deleted."""


class _Header(NamedTuple):
    magic: bytes
    fingerprint: bytes
    name: bytes
    size: int
    checksum: int


class BlockFolder:
    """The blocks of one engine under `root`; `fingerprint` (32 bytes) identifies the engines that can use them.

    It takes over the blocks of an earlier engine with the same fingerprint. Folders of this user that no engine has
    open are deleted, so that only running engines take space. Raises OSError if the folder cannot be used.
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
        """Return the bytes that a block of `size` bytes takes on this disk, with its header, in whole blocks of the
        file system.
        """
        unit = os.statvfs(self.path).f_frsize
        return -(-(HEADER.size + size) // unit) * unit

    def names(self) -> list[bytes]:
        """Return the names of all blocks, least recently used first."""
        found = []
        for entry in os.scandir(self.path):
            if entry.name.endswith(SUFFIX):
                with suppress(ValueError, FileNotFoundError):
                    found.append((entry.stat().st_mtime_ns, bytes.fromhex(entry.name.removesuffix(SUFFIX))))
        return [name for _, name in sorted(found)]

    def write(self, name: bytes, data: memoryview) -> None:
        """Write a block. Raises OSError, and then it is not stored."""
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

        Raises MissingBlockError, another OSError or CorruptBlockError; the buffer's contents are then undefined.
        """
        file = self._file(name)
        start = bytearray(HEADER.size)
        with _open(file) as opened:
            size = os.readv(opened.fileno(), [start, into])
            while size < HEADER.size + len(into):
                more = os.readv(opened.fileno(), [into[max(0, size - HEADER.size) :]]) if size >= HEADER.size else 0
                if not more:
                    raise CorruptBlockError(f"{file} is truncated")
                size += more
        header = _Header(*HEADER.unpack(start))
        wanted = _Header(MAGIC, self._fingerprint, name.ljust(NAME_BYTES, b"\0"), len(into), zlib.crc32(into))
        for field, found, right in zip(_Header._fields, header, wanted, strict=True):
            if found != right:
                raise CorruptBlockError(f"{file} has the wrong {field}")
        with suppress(OSError):
            # A failure only loses the time of the last use.
            os.utime(file)

    def delete(self, name: bytes) -> None:
        """Delete a block, if it is stored. Raises OSError."""
        self._file(name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete all blocks. Raises OSError after all of them have been tried."""
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
        """Release the folder; its blocks stay for the next engine."""
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
    """Return the first folder STEM-NUMBER under `root` that this user owns and no engine has open, and the descriptor
    of its lock. Creates the folder if it does not exist.
    """
    number = 0
    while True:
        path = root / f"{stem}-{number}"
        if _make(path):
            try:
                held = folder_lock.lock(path, LOCK, make=True)
            except FileNotFoundError:
                # Another engine has just deleted it as unused: create it again.
                continue
            if held is not None:
                return path, held
        number += 1


def _make(path: Path) -> bool:
    """Create a folder for its owner alone if it does not exist; return whether this user owns it."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return folder_lock.is_ours(path)
    return True


def _delete_unless_open(path: Path) -> None:
    """Delete a folder that no engine has open. If that fails, log a warning and continue."""
    try:
        held = folder_lock.lock(path, LOCK, make=True)
        if held is None:
            return
        try:
            folder_lock.remove(path, LOCK)
        finally:
            os.close(held)
    except FileNotFoundError:
        # Another starting engine was faster.
        return
    except OSError as error:
        logger.warning("cannot delete %s, which another engine left behind: %s", path, error)
