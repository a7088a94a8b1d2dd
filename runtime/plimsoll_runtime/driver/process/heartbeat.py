"""The heartbeat of an engine process: a page of shared memory with the time of the next beat, and the watch that
detects a hang.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from typing import NamedTuple

_DUE, _TAKEN = range(2)
"""Indices of eight-byte words, which are written and read atomically."""


class Beat(NamedTuple):
    """`due_ns`: time by which the engine will write again (0: it waits for commands). `taken`: commands taken so
    far.
    """

    due_ns: int
    taken: int


class Pulse:
    """The heartbeat page, shared by the two processes that have its file descriptor.

    It costs the engine two stores a step and no message, and the reader sees the latest value even if it was stopped
    itself. Both use the machine's monotonic clock, which stands still while the machine is suspended.
    """

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        self._words = memoryview(self._page).cast("q")

    def expect(self, seconds: float) -> None:
        """Record that the engine is busy and will write again within `seconds`."""
        self._words[_DUE] = time.monotonic_ns() + int(seconds * 1e9)

    def rest(self) -> None:
        """Record that the engine waits for commands."""
        self._words[_DUE] = 0

    def took(self) -> None:
        """Count a command that the engine has taken."""
        self._words[_TAKEN] += 1

    def read(self) -> Beat:
        """Return the last beat."""
        return Beat(self._words[_DUE], self._words[_TAKEN])

    def close(self) -> None:
        """Unmap the page. The object cannot be used afterwards."""
        self._words.release()
        self._page.close()


def new_page() -> int:
    """Return a memory descriptor of a zeroed page. Create a `Pulse` of it in both processes, then close it."""
    descriptor = os.memfd_create("plimsoll-pulse")
    os.ftruncate(descriptor, mmap.PAGESIZE)
    return descriptor


CHECK_SECONDS = 1.0
"""Interval of checks."""

_CHECK_NS = int(CHECK_SECONDS * 1e9)


class Watch:
    """Detects a hung engine from its beats, with a check every `CHECK_SECONDS`.

    Time in which the watcher did not run itself (its process was stopped or starved, and the engine probably too) does
    not count: it is added to the time that the engine has set itself.

    An engine is hung if it is busy beyond the time that it has set itself, or leaves commands unread. An idle engine is
    never late, and a loading one has set itself no time.
    """

    def __init__(self, timeout: float, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._timeout_ns = int(timeout * 1e9)
        self._clock = clock
        self._checked_ns: int | None = None
        self._last = Beat(0, 0)
        self._lost_ns = 0
        self._left_lying_ns: int | None = None

    def is_hung(self, beat: Beat, sent: int) -> bool:
        """Return whether the engine hangs, by its beat and the number of commands sent. Always False with timeout 0."""
        now = self._clock()
        late = 0 if self._checked_ns is None else now - self._checked_ns - _CHECK_NS
        self._checked_ns = now
        if beat != self._last:
            self._lost_ns, self._left_lying_ns, self._last = 0, None, beat
        if late > _CHECK_NS:
            self._lost_ns += late
        due = beat.due_ns or self._due_to_read(now, sent > beat.taken)
        return self._timeout_ns > 0 and due is not None and now > due + self._lost_ns

    def _due_to_read(self, now: int, unread: bool) -> int | None:
        """Return the time by which an idle engine must have taken a command that was sent; None if all are taken."""
        if not unread:
            self._left_lying_ns = None
            return None
        if self._left_lying_ns is None:
            self._left_lying_ns = now
        return self._left_lying_ns + self._timeout_ns
