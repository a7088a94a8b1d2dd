"""What was recommended over the last while, so that a change is made only once it has been wanted for long enough."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise


class Extremes:
    """The least and the most of what was said within so many seconds, kept in order as monotonic queues."""

    def __init__(self) -> None:
        self._most: deque[tuple[float, int]] = deque()
        self._least: deque[tuple[float, int]] = deque()

    def say(self, at: float, value: int) -> None:
        """Times never fall."""
        while self._most and self._most[-1][1] <= value:
            self._most.pop()
        self._most.append((at, value))
        while self._least and self._least[-1][1] >= value:
            self._least.pop()
        self._least.append((at, value))

    def forget(self, before: float) -> None:
        """What was said before this is no longer of interest."""
        for queue in (self._most, self._least):
            while len(queue) > 1 and queue[0][0] < before:
                queue.popleft()

    def most(self, since: float) -> int:
        """The most since then; of nothing said, 0."""
        return next(self._since(self._most, since), 0)

    def least(self, since: float) -> int:
        """The least since then; of nothing said, 0."""
        return next(self._since(self._least, since), 0)

    def check_integrity(self) -> None:
        """Raise AssertionError where an older entry could never be an extreme."""
        for queue, sign in ((self._most, 1), (self._least, -1)):
            entries = list(queue)
            assert [at for at, _ in entries] == sorted(at for at, _ in entries)
            assert all(sign * a[1] > sign * b[1] for a, b in pairwise(entries))

    def _since(self, queue: deque[tuple[float, int]], since: float) -> Iterator[int]:
        return (value for at, value in queue if at >= since)
