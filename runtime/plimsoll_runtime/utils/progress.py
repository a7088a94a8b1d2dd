"""Progress of loads and downloads: bytes, rate, remaining time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

DOWNLOAD = "download"
"""Name of the download stage."""
WINDOW_SECONDS = 30.0
"""Time over which the rate is measured. For a hub without Xet the library counts in steps of 10 MB."""
FIRST_SECONDS = 1.0
"""Time of measuring before a rate is shown."""

LONGEST_SECONDS = 100 * 3600.0
"""Maximum remaining time that is shown."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes downloaded, and total bytes; 0 while unknown."""

    done: int
    total: int = 0

    @property
    def fraction(self) -> float:
        """Progress from 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0


OnTransfer = Callable[[Transfer], None]


class Rate:
    """Bytes per second over the last WINDOW_SECONDS."""

    def __init__(self) -> None:
        self._points = deque[tuple[float, int]]()

    def update(self, now: float, done: int) -> float | None:
        """Add the number of bytes done by the time `now` (in seconds), and return the rate, or None while it is
        unknown.
        """
        points = self._points
        if points and done < points[-1][1]:  # another download
            points.clear()
        points.append((now, done))
        while len(points) > 2 and points[1][0] <= now - WINDOW_SECONDS:
            points.popleft()
        began, first = points[0]
        return (done - first) / (now - began) if now - began >= FIRST_SECONDS else None


def transfer_text(transfer: Transfer, rate: float | None) -> str:
    """Return a text like "1.2 of 2.9 GB, 31 MB/s, 55 s left", without unknown parts."""
    unit, size = _unit(max(transfer.done, transfer.total))
    whole = f" of {transfer.total / size:.1f}" if transfer.total else ""
    parts = [f"{transfer.done / size:.1f}{whole} {unit}"]
    if rate is not None:
        parts.append(_rate_text(rate))
        left = (transfer.total - transfer.done) / rate if rate > 0 else LONGEST_SECONDS
        if transfer.total and 0 <= left < LONGEST_SECONDS:
            parts.append(f"{_duration(left)} left")
    return ", ".join(parts)


def _rate_text(rate: float) -> str:
    unit, size = _unit(rate)
    return f"{rate / size:.{1 if 0 < rate / size < 10 else 0}f} {unit}/s"


def _unit(number: float) -> tuple[str, int]:
    """Return the decimal unit and its size, as the hub uses them."""
    return next(((unit, size) for unit, size in (("GB", 10**9), ("MB", 10**6)) if number >= size), ("kB", 10**3))


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


Progress = Callable[[str, float], None]
"""Called with a stage's name and its progress from 0 to 1."""


class TransferProgress(Protocol):
    """A Progress that also accepts the bytes of a download."""

    def __call__(self, stage: str, fraction: float, transfer: Transfer | None = None) -> None:
        """Report a stage, its progress from 0 to 1, and for downloads the bytes."""


def silent(stage: str, fraction: float, transfer: Transfer | None = None) -> None:
    """A Progress that shows nothing."""
