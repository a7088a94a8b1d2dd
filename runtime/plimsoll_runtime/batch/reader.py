"""Reads input files row by row in bounded memory, and makes each row's prompt of a column or a template."""

from __future__ import annotations

import base64
import datetime
import decimal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any

import jinja2
import msgspec

from plimsoll_runtime.batch.compression import damage, wrapped
from plimsoll_runtime.batch.inputs import Columns, InputFile, csv_rows, parquet_rows
from plimsoll_runtime.batch.job import Row, Shard
from plimsoll_runtime.batch.output_paths import CSV, JSONL, PARQUET
from plimsoll_runtime.errors import UNREADABLE, UsageError
from plimsoll_runtime.text.chat_template import environment
from plimsoll_runtime.text.template_sandbox import bounded

MESSAGES = "messages"


class RowError(ValueError):
    """A row of which no prompt can be made; the message says why."""


@dataclass(frozen=True)
class PromptRule:
    """How a prompt is made of columns: `column` has it, or the Jinja `template` says it.

    `field`: of the request, where it stands; as `messages` it is what a user says. `id_column` has the row's
    `custom_id`.
    """

    column: str | None = None
    template: str | None = None
    field: str = "prompt"
    id_column: str | None = None

    def check(self) -> None:
        """Raises UsageError for a template that is none, or nothing to make a prompt of."""
        if (self.column is None) == (self.template is None):
            raise UsageError("a table's rows need either --prompt-column or --template, and not both")
        try:
            _ = self._compiled
        except jinja2.TemplateError as error:
            raise UsageError(f"--template is no template: {error}") from error

    def line(self, columns: Mapping[str, Any]) -> bytes:
        """The row as a line of JSON. Raises RowError."""
        text = self._text(columns)
        line: dict[str, Any] = {self.field: [{"role": "user", "content": text}] if self.field == MESSAGES else text}
        if self.id_column is not None:
            line["custom_id"] = str(_plain(_value(columns, self.id_column)))
        return msgspec.json.encode(line)

    def _text(self, columns: Mapping[str, Any]) -> str:
        if self._compiled is None:
            assert self.column is not None
            value = _value(columns, self.column)
            if not isinstance(value, str):
                raise RowError(f"has no text in the column {self.column!r}")
            return value
        values = {name: _plain(value) for name, value in columns.items()}
        try:
            with bounded(values):
                return self._compiled.render(values)
        except Exception as error:
            raise RowError(f"does not fit --template: {error}") from error

    @cached_property
    def _compiled(self) -> jinja2.Template | None:
        return (
            None if self.template is None else environment(undefined=jinja2.StrictUndefined).from_string(self.template)
        )


def _value(columns: Mapping[str, Any], name: str) -> Any:
    if name not in columns:
        raise RowError(f"has no column {name!r}; it has {', '.join(list(columns)[:20])}")
    return columns[name]


def _plain(value: Any) -> Any:
    """As templates may see it: what JSON has, and texts of the rest."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)):
        return str(value)
    return value


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


def read_rows(inputs: Sequence[InputFile], shard: Shard, prompting: PromptRule | None = None) -> Iterator[Row]:
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


def _line(found: _Found, prompting: PromptRule | None) -> tuple[bytes, str | None]:
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
