"""Whether an engine's process has hung: it is busy beyond the time that it has set itself, or leaves commands lying.

An engine that has nothing to do is never late, and one that loads has set itself no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from plimsoll_runtime.driver.pulse import Beat

CHECK_SECONDS = 1.0
"""Between two checks."""

_CHECK_NS = int(CHECK_SECONDS * 1e9)


class Watch:
    """Judges an engine's beats, looked at every `CHECK_SECONDS`.

    Time in which the watcher did not run itself (its process was stopped, or starved, and the engine with it in all
    likelihood) is no time of the engine's: it is added to what the engine has set itself.
    """

    def __init__(self, timeout: float, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._timeout_ns = int(timeout * 1e9)
        self._clock = clock
        self._checked_ns: int | None = None
        self._last = Beat(0, 0)
        self._lost_ns = 0
        self._left_lying_ns: int | None = None

    def is_hung(self, beat: Beat, sent: int) -> bool:
        """Whether the engine has hung, by its beat and the number of commands sent to it. Never with timeout 0."""
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
        """By when an engine that waits for commands must have taken one that was sent."""
        if not unread:
            self._left_lying_ns = None
            return None
        if self._left_lying_ns is None:
            self._left_lying_ns = now
        return self._left_lying_ns + self._timeout_ns
