"""How soon a thread that waits for Python's lock gets it from one that computes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 1e-4


@contextmanager
def quick_switches() -> Iterator[None]:
    """While the block runs, a thread that wants the lock has it after `SECONDS`, for Python's own five milliseconds.

    A step of a small model takes less than these, so that the thread which computes would stand still after each for
    as long as another has Python to run.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
