"""A text at the start of each line of a process's log."""

from __future__ import annotations

import logging
from typing import Any


def prefix_log(text: str) -> None:
    """Begin each message of this process's log with a text. It must not contain %."""
    make = logging.getLogRecordFactory()

    def prefixed(*args: Any, **values: Any) -> logging.LogRecord:
        record = make(*args, **values)
        record.msg = f"{text}{record.msg}"
        return record

    logging.setLogRecordFactory(prefixed)
