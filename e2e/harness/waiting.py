"""Waiting for something to become true, with what was last seen in the failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
INTERVAL = 0.25


class NotInTimeError(AssertionError):
    """What was waited for did not happen."""


def until(what: str, look: Callable[[], T | None], *, timeout: float, state: Callable[[], object] = str) -> T:
    """Call `look` until it returns something true, and return that. `state` is shown when the time is over."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(INTERVAL)
    raise NotInTimeError(f"{what}: not within {timeout:g} s\n{state()}")


def hold(seconds: float) -> None:
    """Let things be as they are for a while: how long something lasts is part of what is proved."""
    time.sleep(seconds)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """So far, rounded to a tenth."""
        return round(time.monotonic() - self._began, 1)
