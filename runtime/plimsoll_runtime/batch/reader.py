"""Reads input files row by row in bounded memory, and makes each row's prompt from a column or a template."""

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
    """A row that gives no prompt; the message says why."""


@dataclass(frozen=True)
class PromptRule:
    """How a prompt is made from columns: from one `column`, or by a Jinja `template`.

    The prompt becomes the request field `field`; as `messages` it is a user message. `id_column` has the row's
    `custom_id`.
    """

    column: str | None = None
    template: str | None = None
    field: str = "prompt"
    id_column: str | None = None

    def check(self) -> None:
        """Raise UsageError for an invalid template, or unless exactly one of `column` and `template` is set."""
        if (self.column is None) == (self.template is None):
            raise UsageError("a table needs exactly one of --prompt-column and --template")
        try:
            _ = self._compiled
        except jinja2.TemplateError as error:
            raise UsageError(f"--template is not a valid Jinja template: {error}") from error

    def line(self, columns: Mapping[str, Any]) -> bytes:
        """Return the row as a line of JSON. Raises RowError."""
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
                raise RowError(f"has no text in column {self.column!r}")
            return value
        values = {name: _plain(value) for name, value in columns.items()}
        try:
            with bounded(values):
                return self._compiled.render(values)
        except Exception as error:
            raise RowError(f"cannot be rendered with --template: {error}") from error

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
    """Return a value for templates: JSON types as they are, other types as text."""
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
"""Most bytes of one line; equals the limit of an HTTP request body."""
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class _Found:
    """A row of one file: its line number, the bytes of the file `read` so far, and its text, its columns or the reason
    why it cannot be read.
    """

    line: int
    read: int
    data: bytes = b""
    columns: Columns | None = None
    fault: str | None = None


def read_rows(inputs: Sequence[InputFile], shard: Shard, prompting: PromptRule | None = None) -> Iterator[Row]:
    """Yield the shard's rows in order. Raises UsageError for a file that is damaged or has changed.

    With `prompting`, every row's line is made from its columns (for JSON lines: its fields). Tables need
    `prompting`.
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
        raise UsageError(f"{file.path} is damaged or incomplete: {error}") from error


def _lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes, str | None]]:
    """Yield the number (from 1) and content of each line that is not empty, or the reason why it cannot be read."""
    number = 0
    while line := stream.readline(MAX_LINE + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) > MAX_LINE and not line.endswith(b"\n"):
            while (more := stream.readline(MAX_LINE)) and not more.endswith(b"\n"):
                pass
            yield number, b"", f"is longer than {MAX_LINE} bytes, the limit of a line"
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
        raise RowError(f"is not a JSON object: {error}") from error


def _check_unchanged(file: InputFile) -> None:
    status = file.path.stat()
    if (status.st_size, status.st_mtime_ns) != (file.size, file.modified_ns):
        raise UsageError(f"{file.path} has changed since the run began; start over with --restart")
