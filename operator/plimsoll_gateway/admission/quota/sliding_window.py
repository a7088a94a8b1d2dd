"""A sliding window of the amounts used in the last minute, by second.

A token bucket allows twice its size in the minute after an idle period. A window does not: no minute exceeds the limit,
wherever it starts, and a steady client gets 60/61 of it.
"""

from __future__ import annotations

import math

SECONDS = 60


class Window:
    """Amounts used in the current second of a monotonic clock and in the `seconds` whole seconds before it."""

    def __init__(self, seconds: int = SECONDS) -> None:
        # An interval that starts within a second overlaps one more slot.
        self._slots = seconds + 1
        self._amounts = [0] * self._slots
        self._newest = 0
        self.total = 0

    def take(self, amount: int, now: float) -> int:
        """Add an amount to the current second, and return that second, to be passed to `correct`."""
        self.forget(now)
        self._amounts[self._newest % self._slots] += amount
        self.total += amount
        return self._newest

    def correct(self, second: int, difference: int, now: float) -> None:
        """Correct the amount of an earlier second by `difference`.

        If that second has left the window, a positive difference counts for the current second, since it has not
        counted yet.
        """
        self.forget(now)
        if second > self._newest - self._slots:
            self._amounts[second % self._slots] += difference
            self.total += difference
        elif difference > 0:
            self.take(difference, now)

    def forget(self, now: float) -> None:
        """Remove the amounts that have left the window."""
        second = int(now)
        if second <= self._newest:
            return
        for passed in range(self._newest + 1, min(second, self._newest + self._slots) + 1):
            self.total -= self._amounts[passed % self._slots]
            self._amounts[passed % self._slots] = 0
        self._newest = second

    def seconds_until(self, amount: int, most: int, now: float) -> float:
        """Return the seconds until the window's total plus `amount` is at most `most`, if nothing else is used;
        infinity if it never is.
        """
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
        """Return the seconds until the window is empty."""
        self.forget(now)
        if self._amounts[self._newest % self._slots]:  # the usual case: something was used in this second
            return self._newest + self._slots - now
        for second in range(self._newest - 1, self._newest - self._slots, -1):
            if self._amounts[second % self._slots]:
                return second + self._slots - now
        return 0.0

    def check_integrity(self) -> None:
        """Raise AssertionError if the total differs from the sum of the slots, or if a slot is negative."""
        assert self.total == sum(self._amounts), f"{self.total} is not the sum of {self._amounts}"
        assert min(self._amounts) >= 0, f"a slot is negative: {self._amounts}"
