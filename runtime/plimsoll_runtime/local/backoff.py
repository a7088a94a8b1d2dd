"""How long to wait before something that died is started again."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
# A process that has lived this long was healthy: its end says nothing about the next one.
STABLE_SECONDS = 60.0


class Backoff:
    """Doubles with each early death, with jitter so that replicas do not start in step; a long life resets it."""

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._jitter = jitter
        self._next = FIRST_SECONDS

    def after(self, lived: float) -> float:
        """Seconds to wait after a process that lived for `lived` seconds: from half to the whole of the step."""
        if lived >= STABLE_SECONDS:
            self._next = FIRST_SECONDS
        step = self._next
        self._next = min(step * 2, LONGEST_SECONDS)
        return step * (0.5 + self._jitter() / 2)
