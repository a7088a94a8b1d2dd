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
    """An open file. Not for several threads."""

    def __init__(self, path: Path) -> None:
        """Open it, empty where it is not there yet."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._rest = bytearray()
        self._written = os.fstat(self._fd).st_size

    @property
    def size(self) -> int:
        """Bytes, those that are still to be written too."""
        return self._written + len(self._rest)

    def flush(self) -> None:
        """What was added outlives the process from here on."""
        if self._rest:
            write_at(self._fd, self._rest, self._written)
            self._written += len(self._rest)
            self._rest.clear()

    def sync(self) -> None:
        """What was added outlives the machine's end from here on."""
        self.flush()
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file, and of what was not written."""
        os.close(self._fd)

    def _cut(self, size: int) -> None:
        """Drop what was written beyond a size."""
        os.ftruncate(self._fd, size)
        self._written = size


def write_at(descriptor: int, data: bytes | bytearray, offset: int) -> None:
    """All of it, however little the system takes at a time."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], offset + done)


_HEAD = struct.Struct("<II")


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The first record: which job it is (see `job`), and when it began (Unix time)."""

    job: dict[str, Any]
    created: int


class Mark(msgspec.Struct, frozen=True, tag="mark"):
    """What the files of answers and of errors hold for good, in bytes: the rows below `upto`, and those of `beyond`.

    `seconds`: how long all runs together had taken by then.
    """

    upto: int
    beyond: list[int]
    answers: int
    errors: int
    tally: Tally
    seconds: float


class End(msgspec.Struct, frozen=True, tag="end"):
    """Every row is answered, and the files are whole: all that is left is to put them in their places."""

    tally: Tally
    seconds: float


Record = Begin | Answered | Mark | End


class Place(NamedTuple):
    """Where a record stands: its first byte, and how many it has without its head."""

    offset: int
    size: int


class Journal(GrowingFile):
    """An open journal.

    A record is its length, its CRC-32 (both little-endian uint32) and its bytes, MessagePack. An added record outlives
    the process after `flush`, and the machine after `sync`. Reading ends before a record that was cut short; what
    follows is cut off before anything is added.
    """

    def __init__(self, path: Path) -> None:
        """Open it, empty where it is not there yet."""
        super().__init__(path)
        self.path = path
        self._decode: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
        self._encode = msgspec.msgpack.Encoder()

    def records(self) -> Iterator[tuple[Place, Record]]:
        """All whole records in their order. At the end what is left of one that was cut short is gone."""
        offset = 0
        while (found := self._at(offset)) is not None:
            yield found
            offset = found[0].offset + found[0].size
        self._cut(offset)

    def add(self, record: Record) -> Place:
        """Put a record behind the others."""
        data = self._encode.encode(record)
        self._rest += _HEAD.pack(len(data), zlib.crc32(data))
        place = Place(self.size, len(data))
        self._rest += data
        return place

    def read(self, place: Place) -> Record:
        """The record at a place."""
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
