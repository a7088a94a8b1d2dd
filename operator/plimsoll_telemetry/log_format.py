"""The formats of log lines: one line of text or one JSON object for each record."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

from plimsoll_telemetry.log_subject import SUBJECT

Form = Literal["text", "json"]
FORMS: tuple[Form, ...] = ("text", "json")
Component = Literal["gateway", "operator", "runtime", "host", "member"]

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    """Return the ids of the task that logged a record, and the record's own `fields`, which take precedence."""
    subject = SUBJECT.get()
    own: Mapping[str, object] = getattr(record, "fields", {})
    return own if subject is None else {**subject.fields(), **own}


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object: time, level, component, logger, message, and its fields."""

    def __init__(self, component: Component) -> None:
        super().__init__()
        self.component = component

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "component": self.component,
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextLines(logging.Formatter):
    """Formats a record as text: time, level, component, logger and message, then the ids of the task that logged it.

    The message of a record with `fields` has them already. Control characters are escaped, so that a message is one
    line; only a traceback has several.
    """

    def __init__(self, component: Component) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {component} %(name)s: %(message)s")
        self.component = component

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record without its traceback."""
        record.message = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], record.message)
        line = super().formatMessage(record)
        subject = SUBJECT.get()
        if subject is None or hasattr(record, "fields"):
            return line
        ids = ", ".join(f"{name}={value}" for name, value in subject.fields().items())
        return f"{line} ({ids})" if ids else line


def formatter(form: Form, component: Component) -> JsonLines | TextLines:
    """Return the formatter of a form."""
    return JsonLines(component) if form == "json" else TextLines(component)
