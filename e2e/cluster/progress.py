"""Progress lines with the seconds since the start, on standard error (standard output is for results)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Safe to use from several threads: each line is one write."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self._start:6.1f} s] {text}\n")
        sys.stderr.flush()

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """One line when the work begins, one with its duration when it ends well."""
        self.say(f"{text} ...")
        begun = time.monotonic()
        yield
        self.say(f"{text}: done in {time.monotonic() - begun:.1f} s")
