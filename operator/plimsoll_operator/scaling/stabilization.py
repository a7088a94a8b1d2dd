"""The extremes of recent recommendations, so that a change happens only after it has been wanted for long enough."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise


class Extremes:
    """The minimum and maximum of values over a sliding time window, as monotonic queues."""

    def __init__(self) -> None:
        self._most: deque[tuple[float, int]] = deque()
        self._least: deque[tuple[float, int]] = deque()

    def say(self, at: float, value: int) -> None:
        """Add a value. Times must not decrease."""
        while self._most and self._most[-1][1] <= value:
            self._most.pop()
        self._most.append((at, value))
        while self._least and self._least[-1][1] >= value:
            self._least.pop()
        self._least.append((at, value))

    def forget(self, before: float) -> None:
        """Drop values that were added before this time, except the last one."""
        for queue in (self._most, self._least):
            while len(queue) > 1 and queue[0][0] < before:
                queue.popleft()

    def most(self, since: float) -> int:
        """Return the highest value since this time, 0 if there is none."""
        return next(self._since(self._most, since), 0)

    def least(self, since: float) -> int:
        """Return the lowest value since this time, 0 if there is none."""
        return next(self._since(self._least, since), 0)

    def check_integrity(self) -> None:
        """Raise AssertionError if a queue has an entry that can never be an extreme."""
        for queue, sign in ((self._most, 1), (self._least, -1)):
            entries = list(queue)
            assert [at for at, _ in entries] == sorted(at for at, _ in entries)
            assert all(sign * a[1] > sign * b[1] for a, b in pairwise(entries))

    def _since(self, queue: deque[tuple[float, int]], since: float) -> Iterator[int]:
        return (value for at, value in queue if at >= since)
