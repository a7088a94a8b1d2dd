"""Append-only files, flushed and synced, and a journal whose records are complete or absent after a crash."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from plimsoll_runtime.batch.job import Answered, Tally
from plimsoll_runtime.errors import UsageError


class GrowingFile:
    """An append-only file with a write buffer. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Open the file; create it if it is missing."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._rest = bytearray()
        self._written = os.fstat(self._fd).st_size

    @property
    def size(self) -> int:
        """Size in bytes, including bytes that are not written yet."""
        return self._written + len(self._rest)

    def flush(self) -> None:
        """Write the buffer, so that its content survives the process."""
        if self._rest:
            write_at(self._fd, self._rest, self._written)
            self._written += len(self._rest)
            self._rest.clear()

    def sync(self) -> None:
        """Write the buffer and call fsync, so that its content survives a crash of the machine."""
        self.flush()
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file. Buffered bytes are lost."""
        os.close(self._fd)

    def _cut(self, size: int) -> None:
        """Truncate the file to `size` bytes."""
        os.ftruncate(self._fd, size)
        self._written = size


def write_at(descriptor: int, data: bytes | bytearray, offset: int) -> None:
    """Write all of `data`, however little the system accepts in one call."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], offset + done)


_HEAD = struct.Struct("<II")


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The first record: the job (see `job`) and the Unix time when it began."""

    job: dict[str, Any]
    created: int


class Mark(msgspec.Struct, frozen=True, tag="mark"):
    """The synced state of the output and error files: their sizes in bytes, and the finished rows (those below `upto`,
    and `beyond`).

    `seconds` is the working time of all runs together.
    """

    upto: int
    beyond: list[int]
    answers: int
    errors: int
    tally: Tally
    seconds: float


class End(msgspec.Struct, frozen=True, tag="end"):
    """Every row is done and the files are complete; they only have to be moved to their final paths."""

    tally: Tally
    seconds: float


Record = Begin | Answered | Mark | End


class Place(NamedTuple):
    """Position of a record: the offset of its first byte, and its size without the header."""

    offset: int
    size: int


class Journal(GrowingFile):
    """An open journal.

    A record is its length, its CRC-32 (both little-endian uint32) and its MessagePack bytes. An added record
    survives the process after `flush`, and the machine after `sync`. Reading stops at a record that was cut short;
    the file is truncated there before the next record is added.
    """

    def __init__(self, path: Path) -> None:
        """Open the journal; create it if it is missing."""
        super().__init__(path)
        self.path = path
        self._decode: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
        self._encode = msgspec.msgpack.Encoder()

    def records(self) -> Iterator[tuple[Place, Record]]:
        """Yield all complete records in order. Afterwards the file is truncated behind the last of them."""
        offset = 0
        while (found := self._at(offset)) is not None:
            yield found
            offset = found[0].offset + found[0].size
        self._cut(offset)

    def add(self, record: Record) -> Place:
        """Append a record and return its place."""
        data = self._encode.encode(record)
        self._rest += _HEAD.pack(len(data), zlib.crc32(data))
        place = Place(self.size, len(data))
        self._rest += data
        return place

    def read(self, place: Place) -> Record:
        """Return the record at a place."""
        if place.offset >= self._written:
            self.flush()
        return self._decode.decode(os.pread(self._fd, place.size, place.offset))

    def _at(self, offset: int) -> tuple[Place, Record] | None:
        head = os.pread(self._fd, _HEAD.size, offset)
        if len(head) < _HEAD.size:
            return None
        size, check = _HEAD.unpack(head)
        if offset + _HEAD.size + size > self._written:
            return None
        data = os.pread(self._fd, size, offset + _HEAD.size)
        if len(data) < size or zlib.crc32(data) != check:
            return None
        try:
            return Place(offset + _HEAD.size, size), self._decode.decode(data)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{self.path} is not a journal that this version can read: {error}") from error
