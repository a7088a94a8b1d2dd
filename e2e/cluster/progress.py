"""Progress lines with the seconds since the start, on standard error (standard output is for results)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Prints progress lines. Thread-safe: each line is one write."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self._start:6.1f} s] {text}\n")
        sys.stderr.flush()

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print one line when the work starts, and one with its duration when it succeeds."""
        self.say(f"{text} ...")
        begun = time.monotonic()
        yield
        self.say(f"{text}: done in {time.monotonic() - begun:.1f} s")
