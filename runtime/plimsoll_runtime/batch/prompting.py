"""Makes of a row's columns the line that asks: its prompt stands in one of them, or a template makes it of several."""

from __future__ import annotations

import base64
import datetime
import decimal
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jinja2
import msgspec

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.text.chat_template import environment
from plimsoll_runtime.text.template_sandbox import bounded

MESSAGES = "messages"


class RowError(ValueError):
    """A row of which no prompt can be made; the message says why."""


@dataclass(frozen=True)
class Prompting:
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
