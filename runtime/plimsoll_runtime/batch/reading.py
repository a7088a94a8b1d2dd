"""Reads files row by row, whatever they are, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from plimsoll_runtime.batch.compressed import damage, wrapped
from plimsoll_runtime.batch.inputs import InputFile
from plimsoll_runtime.batch.job import Shard
from plimsoll_runtime.batch.places import CSV, JSONL, PARQUET
from plimsoll_runtime.batch.prompting import Prompting, RowError
from plimsoll_runtime.batch.row import Row
from plimsoll_runtime.batch.tables import Columns, csv_rows, parquet_rows
from plimsoll_runtime.errors import UNREADABLE, UsageError

MAX_LINE = 32 * 2**20
"""Bytes of one line, as many as a request over HTTP may have."""
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class _Found:
    """A row of one file: where it stands, the line that it is or makes, or its columns, or why it is none."""

    line: int
    read: int
    data: bytes = b""
    columns: Columns | None = None
    fault: str | None = None


def read_rows(inputs: Sequence[InputFile], shard: Shard, prompting: Prompting | None = None) -> Iterator[Row]:
    """The shard's rows, one after the other. Raises UsageError for a file that is damaged, or has changed.

    With a `prompting` all of them are made of their columns (for lines of JSON: their fields); tables need one.
    """
    index = 0
    for file in inputs:
        _check_unchanged(file)
        read = 0
        for found in _rows_of(file):
            number, ours = divmod(index - shard.index, shard.count)
            if not ours:
                data, fault = _line(found, prompting)
                yield Row(index, number, str(file.path), found.line, found.read - read, data, fault)
                read = found.read
            index += 1


def _rows_of(file: InputFile) -> Iterator[_Found]:
    if file.kind.format == PARQUET:
        for number, (columns, share) in enumerate(parquet_rows(file.path), 1):
            yield _Found(number, int(share * file.size), columns=columns)
        return
    compression = file.kind.compression
    try:
        with file.path.open("rb") as raw, wrapped(raw, compression, "rb") as stream:
            if file.kind.format == JSONL:
                for number, line, fault in _lines(stream):
                    yield _Found(number, raw.tell() if compression else stream.tell(), line, fault=fault)
            elif file.kind.format == CSV:
                for number, (row, fault) in enumerate(csv_rows(stream, file.path), 1):
                    yield _Found(number, raw.tell(), columns=row, fault=fault)
    except damage(compression) as error:
        raise UsageError(f"{file.path} cannot be read to its end: {error}") from error


def _lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes, str | None]]:
    """Lines that hold something, by their number from 1, without their ends; or why one is not to be had."""
    number = 0
    while line := stream.readline(MAX_LINE + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) > MAX_LINE and not line.endswith(b"\n"):
            while (more := stream.readline(MAX_LINE)) and not more.endswith(b"\n"):
                pass
            yield number, b"", f"is longer than {MAX_LINE} bytes"
        elif line := line.strip():
            yield number, line, None


def _line(found: _Found, prompting: Prompting | None) -> tuple[bytes, str | None]:
    if found.fault is not None or prompting is None:
        return found.data, found.fault
    try:
        columns = _fields(found.data) if found.columns is None else found.columns
        return prompting.line(columns), None
    except RowError as error:
        return b"", str(error)


def _fields(line: bytes) -> Columns:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except UNREADABLE as error:
        raise RowError(f"is no JSON object: {error}") from error


def _check_unchanged(file: InputFile) -> None:
    status = file.path.stat()
    if (status.st_size, status.st_mtime_ns) != (file.size, file.modified_ns):
        raise UsageError(f"{file.path} has changed since the run began")
