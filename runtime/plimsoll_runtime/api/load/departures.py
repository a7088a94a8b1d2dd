"""How fast what waits leaves the queue."""

from __future__ import annotations

import math
from collections.abc import Callable

SECONDS = 10.0
"""What left so long ago counts for 1/e of what leaves now."""
LEAST_SECONDS = 0.5
"""How long departures must have been counted before a rate is told."""
NOTHING = 1e-3
"""A weight below this counts as zero: nothing has left of late."""


class DepartureRate:
    """A rate over about the last `SECONDS` seconds: what leaves counts less the longer ago it was."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._weight = 0.0
        self._began = self._as_of = clock()

    def left(self, count: int) -> None:
        """So many have left now."""
        self._age()
        if self._weight < NOTHING:
            self._began = self._as_of
        self._weight += count

    def seconds(self, count: int) -> float | None:
        """How long it will take until so many more have left; None where that cannot be said."""
        self._age()
        over = self._as_of - self._began
        if self._weight < NOTHING or over < LEAST_SECONDS:
            return None
        return count * SECONDS * -math.expm1(-over / SECONDS) / self._weight

    def _age(self) -> None:
        now = self._clock()
        self._weight *= math.exp((self._as_of - now) / SECONDS)
        self._as_of = now
