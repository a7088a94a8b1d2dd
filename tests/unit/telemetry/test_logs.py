"""The handler that counts repeated lines, and the settings of a process's log."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from plimsoll_telemetry.log_format import formatter
from plimsoll_telemetry.log_subject import SUBJECT, LogSubject
from plimsoll_telemetry.logs import CountingHandler, LogSettings, log_settings
from plimsoll_telemetry.repeated_lines import FIRST, MOST_KINDS, WINDOW_SECONDS


class Log:
    """A logger whose lines a test reads, with a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self._stream = io.StringIO()
        target = logging.StreamHandler(self._stream)
        target.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        self.handler = CountingHandler(target, lambda: self.now)
        self.logger = logging.Logger("x")
        self.logger.addHandler(self.handler)

    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.handler.close()


def test_repetitions_are_one_line(log: Log) -> None:
    for number in range(FIRST + 7):
        log.logger.warning("replica %s failed", number)
    assert log.lines() == [f"WARNING replica {number} failed" for number in range(FIRST)]
    log.now = WINDOW_SECONDS
    log.logger.info("another")
    assert log.lines()[FIRST:] == ["WARNING replica %s failed: repeated 7 more times in 60 s", "INFO another"]
    log.logger.warning("replica %s failed", "x")
    assert log.lines()[-1] == "WARNING replica x failed", "a window begins again"


def test_counts_are_written_at_the_end(log: Log) -> None:
    for _ in range(FIRST + 1):
        log.logger.error("no disk")
    log.handler.close()
    assert log.lines()[-1] == "ERROR no disk: repeated 1 more time in 0 s"


def test_counts_are_written_when_nothing_else_is_logged(log: Log) -> None:
    for _ in range(FIRST + 3):
        log.logger.warning("no disk")
    log.now = WINDOW_SECONDS
    log.handler._due()
    assert log.lines()[-1] == "WARNING no disk: repeated 3 more times in 60 s"


def test_lines_about_other_models_do_not_count(log: Log) -> None:
    for name in ("a", "b"):
        token = SUBJECT.set(LogSubject(model=f"ns/{name}"))
        for _ in range(FIRST + 1):
            log.logger.warning("failed")
        SUBJECT.reset(token)
    log.handler.close()
    assert log.lines().count("WARNING failed") == 2 * FIRST
    assert log.lines()[-1] == "WARNING failed (ns/b): repeated 1 more time in 0 s"


def test_debug_lines_and_lines_that_are_never_alike_are_all_written(log: Log) -> None:
    for _ in range(2 * FIRST):
        log.logger.debug("step")
        log.logger.info("request", extra={"alike": None})
    assert len(log.lines()) == 4 * FIRST


def test_a_line_can_say_what_it_is_like_and_how_many_to_show(log: Log) -> None:
    for number in range(5):
        log.logger.info("POST %d", number, extra={"alike": "POST 503", "first": 2})
    log.handler.close()
    assert log.lines() == ["INFO POST 0", "INFO POST 1", "INFO POST 503: repeated 3 more times in 0 s"]


def test_the_first_line_of_each_kind_is_written_whatever_comes(log: Log) -> None:
    for number in range(3 * MOST_KINDS):
        log.logger.error(f"error {number}")
    assert len(log.lines()) == 3 * MOST_KINDS


def test_child_processes_get_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    target = logging.StreamHandler(io.StringIO())
    target.setFormatter(formatter("json", "host"))
    monkeypatch.setattr(root, "handlers", [CountingHandler(target)])
    assert log_settings() == LogSettings("json", "host", root.getEffectiveLevel())
    monkeypatch.setattr(root, "handlers", [])
    assert log_settings()[:2] == ("text", "runtime")
