"""What was used in the last minute, second by second.

A bucket that refills lets twice its size through in the minute after a rest. A window does not: no minute, wherever it
begins, has more than the limit, and a steady client gets 60/61 of it.
"""

from __future__ import annotations

import math

SECONDS = 60


class Window:
    """Amounts used in the last minute, or other time, by whole seconds of a clock that does not go back."""

    def __init__(self, seconds: int = SECONDS) -> None:
        # Time that begins within a second touches one more of them.
        self._slots = seconds + 1
        self._amounts = [0] * self._slots
        self._newest = 0
        self.total = 0

    def take(self, amount: int, now: float) -> int:
        """Use so much now; returns the second, for `correct`."""
        self.forget(now)
        self._amounts[self._newest % self._slots] += amount
        self.total += amount
        return self._newest

    def correct(self, second: int, difference: int, now: float) -> None:
        """More or less was used in that second than was said then.

        Where that is too long ago, what was used beyond what was said counts now: it has not counted yet.
        """
        self.forget(now)
        if second > self._newest - self._slots:
            self._amounts[second % self._slots] += difference
            self.total += difference
        elif difference > 0:
            self.take(difference, now)

    def forget(self, now: float) -> None:
        """Leave out what is longer ago."""
        second = int(now)
        if second <= self._newest:
            return
        for passed in range(self._newest + 1, min(second, self._newest + self._slots) + 1):
            self.total -= self._amounts[passed % self._slots]
            self._amounts[passed % self._slots] = 0
        self._newest = second

    def seconds_until(self, amount: int, most: int, now: float) -> float:
        """How long until `amount` more is at most `most` in the time, if nothing else is used; infinity for never."""
        self.forget(now)
        left = self.total + amount - most
        if left <= 0:
            return 0.0
        for second in range(self._newest - self._slots + 1, self._newest + 1):
            left -= self._amounts[second % self._slots]
            if left <= 0:
                return second + self._slots - now
        return math.inf

    def seconds_until_empty(self, now: float) -> float:
        """How long until nothing is used any more."""
        self.forget(now)
        if self._amounts[self._newest % self._slots]:  # as nearly always: something has just been used
            return self._newest + self._slots - now
        for second in range(self._newest - 1, self._newest - self._slots, -1):
            if self._amounts[second % self._slots]:
                return second + self._slots - now
        return 0.0

    def check_integrity(self) -> None:
        """Raise AssertionError where the sum is not that of the seconds, or one has less than nothing."""
        assert self.total == sum(self._amounts), f"{self.total} is not the sum of {self._amounts}"
        assert min(self._amounts) >= 0, f"less than nothing was used: {self._amounts}"
