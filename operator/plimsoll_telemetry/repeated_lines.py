"""Counts repeated log lines: the first few of a window are written, the others counted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)

FIRST = 10
"""Lines of one kind that are written in a window."""
WINDOW_SECONDS = 60.0
MOST_KINDS = 256
"""Kinds of lines that are counted at a time. Beyond it the window of the oldest ends early."""


class Repeated(NamedTuple, Generic[KeyT]):
    """Lines of a kind that were counted instead of written, in the `seconds` since the first line of their window."""

    kind: KeyT
    lines: int
    seconds: float


class _Window:
    __slots__ = ("began", "counted", "written")

    def __init__(self, began: float) -> None:
        self.began = began
        self.written = 0
        self.counted = 0


class RepeatedLines(Generic[KeyT]):
    """The windows of all kinds of lines. A kind's window begins with its first line after the last window has ended."""

    def __init__(self, seconds: float = WINDOW_SECONDS, most: int = MOST_KINDS) -> None:
        self._seconds = seconds
        self._most = most
        self._windows: OrderedDict[KeyT, _Window] = OrderedDict()  # by the time that they began

    def admit(self, kind: KeyT, now: float, first: int = FIRST) -> bool:
        """Return whether to write a line; otherwise it is counted. Call `ended` before. `first`: lines of this kind
        that are written in a window.
        """
        window = self._windows.get(kind)
        if window is None:
            window = self._windows[kind] = _Window(now)
        if window.written < first:
            window.written += 1
            return True
        window.counted += 1
        return False

    def ended(self, now: float, kind: KeyT | None = None) -> list[Repeated[KeyT]]:
        """End the windows that are over, and the oldest one if there is no room for one of `kind`; return the counts of
        those that counted lines.
        """
        full = kind is not None and kind not in self._windows and len(self._windows) >= self._most
        return list(self._end(now, int(full)))

    def end_all(self, now: float) -> list[Repeated[KeyT]]:
        """End all windows; return the counts of those that counted lines."""
        return list(self._end(now, len(self._windows)))

    def next_end(self) -> float | None:
        """Return when the next window with counted lines ends; None without one."""
        return next((w.began + self._seconds for w in self._windows.values() if w.counted), None)

    def check_integrity(self) -> None:
        """Raise AssertionError if there are too many windows, or if they are out of order."""
        assert len(self._windows) <= self._most
        began = [window.began for window in self._windows.values()]
        assert began == sorted(began)
        assert all(window.written for window in self._windows.values()), "a window began without a written line"

    def _end(self, now: float, least: int) -> Iterator[Repeated[KeyT]]:
        while self._windows:
            kind, window = next(iter(self._windows.items()))
            if least <= 0 and now - window.began < self._seconds:
                return
            least -= 1
            del self._windows[kind]
            if window.counted:
                yield Repeated(kind, window.counted, now - window.began)
