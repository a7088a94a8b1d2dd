"""A page of memory in which an engine's process says until when it will be heard of again.

It costs the engine two stores a step and no message, and whoever reads it has the latest value, even if it did not run
for a while itself. Both sides' clocks are the machine's monotonic one, which stands still while the machine sleeps.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import NamedTuple

_DUE, _TAKEN = range(2)
"""Words of eight bytes, each written and read whole."""


class Beat(NamedTuple):
    """`due_ns`: by then the engine will have written again (0: it waits for commands). `taken`: commands so far."""

    due_ns: int
    taken: int


class Pulse:
    """The page, shared by the two processes that have its file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        self._words = memoryview(self._page).cast("q")

    def expect(self, seconds: float) -> None:
        """The engine is busy, and will write again within `seconds`."""
        self._words[_DUE] = time.monotonic_ns() + int(seconds * 1e9)

    def rest(self) -> None:
        """The engine waits for commands, for as long as there are none."""
        self._words[_DUE] = 0

    def took(self) -> None:
        """The engine has taken a command."""
        self._words[_TAKEN] += 1

    def read(self) -> Beat:
        """What the engine has said last."""
        return Beat(self._words[_DUE], self._words[_TAKEN])

    def close(self) -> None:
        """Give the page back; the object is of no use afterwards."""
        self._words.release()
        self._page.close()


def new_page() -> int:
    """The descriptor of a page of zeros in memory, to be made a `Pulse` on both sides, and closed."""
    descriptor = os.memfd_create("plimsoll-pulse")
    os.ftruncate(descriptor, mmap.PAGESIZE)
    return descriptor
