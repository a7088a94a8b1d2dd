"""Waits for conditions, and shows the last observed state on failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
INTERVAL = 0.25


class NotInTimeError(AssertionError):
    """The condition did not become true in time."""


def until(what: str, look: Callable[[], T | None], *, timeout: float, state: Callable[[], object] = str) -> T:
    """Call `look` until it returns something true, and return that. After `timeout` seconds, raises NotInTimeError with
    the text of `state()`.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(INTERVAL)
    raise NotInTimeError(f"{what}: not within {timeout:g} s\n{state()}")


def hold(seconds: float) -> None:
    """Sleep, for scenarios that must show that a state lasts, or that need load for some time."""
    time.sleep(seconds)


class Stopwatch:
    """Measures seconds since its creation."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Elapsed seconds, rounded to a tenth."""
        return round(time.monotonic() - self._began, 1)
