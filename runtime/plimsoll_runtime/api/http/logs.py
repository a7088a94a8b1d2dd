"""The server's log: lines to be read, or a JSON object a line for what collects them."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Literal

import msgspec


class JsonLines(logging.Formatter):
    """Each line an object: time, level, logger, message, and the `fields` that a record carries beside its message."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as a line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def begin_log(form: Literal["text", "json"]) -> None:
    """Log to standard error from here on."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if form == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
