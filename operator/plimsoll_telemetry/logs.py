"""Sets up the log of a process: its form, its component, and the counting of repeated lines."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from plimsoll_telemetry.log_format import Component, Form, JsonLines, TextLines, formatter
from plimsoll_telemetry.log_subject import SUBJECT
from plimsoll_telemetry.repeated_lines import FIRST, Repeated, RepeatedLines

MOST_TEXT = 300
"""Characters of a message that distinguish kinds of lines."""


class LineKind(NamedTuple):
    """Lines that repeat each other: of one logger and level, with one text before its arguments are filled in, about
    one model or object.
    """

    logger: str
    level: int
    text: str
    about: str


class LogSettings(NamedTuple):
    """The settings of a process's log, for its child processes. `level` is a number of `logging`."""

    form: Form
    component: Component
    level: int


class CountingHandler(logging.Handler):
    """Passes records on to another handler, and counts repeated ones. DEBUG lines are never counted.

    `alike` of a record, if it has one, is its text as far as repetition is concerned, and `first` the number of such
    lines that a window shows; with `alike` None it never counts as repeated.
    """

    def __init__(self, target: logging.Handler, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.target = target
        self._clock = clock
        self._lines: RepeatedLines[LineKind] = RepeatedLines()
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write or count a record."""
        kind, now = _kind_of(record), self._clock()
        self._tell(self._lines.ended(now, kind))
        if kind is None or self._lines.admit(kind, now, getattr(record, "first", FIRST)):
            self.target.handle(record)
        else:
            self._wait(now)

    def flush(self) -> None:
        """Flush the target."""
        self.target.flush()

    def close(self) -> None:
        """Write all counts: the process ends."""
        self.acquire()
        try:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._tell(self._lines.end_all(self._clock()))
        finally:
            self.release()
        super().close()

    def _wait(self, now: float) -> None:
        """Start a timer for the next window that ends with counted lines, unless one runs: the counts must appear even
        if nothing else is logged.
        """
        end = self._lines.next_end()
        if self._timer is None and end is not None:
            self._timer = threading.Timer(max(0.0, end - now), self._due)
            self._timer.daemon = True
            self._timer.start()

    def _due(self) -> None:
        self.acquire()
        try:
            self._timer = None
            now = self._clock()
            self._tell(self._lines.ended(now))
            self._wait(now)
        finally:
            self.release()

    def _tell(self, ended: list[Repeated[LineKind]]) -> None:
        for kind, lines, seconds in ended:
            about = f" ({kind.about})" if kind.about else ""
            message = (
                f"{kind.text}{about}: repeated {lines} more {'time' if lines == 1 else 'times'} in {seconds:.0f} s"
            )
            record = logging.makeLogRecord(
                {
                    "name": kind.logger,
                    "levelno": kind.level,
                    "levelname": logging.getLevelName(kind.level),
                    "msg": message,
                    "fields": {"repeated": lines, "seconds": round(seconds, 3)},
                }
            )
            token = SUBJECT.set(None)  # the lines belong to other requests than the one that is logged now
            try:
                self.target.handle(record)
            finally:
                SUBJECT.reset(token)


def _kind_of(record: logging.LogRecord) -> LineKind | None:
    """Return the kind of a record; None if it never counts as repeated."""
    text = getattr(record, "alike", record.msg)
    if text is None or record.levelno <= logging.DEBUG:
        return None
    subject = SUBJECT.get()
    about = "" if subject is None else subject.object or subject.model
    return LineKind(record.name, record.levelno, str(text)[:MOST_TEXT], about)


def begin_log(form: Form, component: Component, level: int | str = logging.INFO) -> None:
    """Log to standard error. Does nothing if the process has set up its log already."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(formatter(form, component))
    logging.basicConfig(level=level, handlers=[CountingHandler(stream)])


def log_settings() -> LogSettings:
    """Return the settings of this process's log, text of a runtime if `begin_log` was not called."""
    level = logging.getLogger().getEffectiveLevel()
    for handler in logging.getLogger().handlers:
        found = handler.target.formatter if isinstance(handler, CountingHandler) else None
        if isinstance(found, JsonLines):
            return LogSettings("json", found.component, level)
        if isinstance(found, TextLines):
            return LogSettings("text", found.component, level)
    return LogSettings("text", "runtime", level)
