"""Cumulative counts by upper bound: what came between two of them, and what share of it kept to a bound."""

from __future__ import annotations

from collections.abc import Iterable

from plimsoll_operator.scaling.demand import Latency

SHARE = 0.95
"""The share of answers that is to keep a target."""


class Spread:
    """How many fell between two bounds. Bounds never change within a release; others begin anew."""

    def __init__(self) -> None:
        self.bounds: tuple[float, ...] = ()
        self.counts: list[int] = []

    def add(self, before: Latency | None, after: Latency) -> None:
        """What came between two answers of a process; nothing without the first, or where the last has no bounds."""
        bounds = tuple(bound for bound, _ in after.buckets)
        if before is None or not bounds or tuple(bound for bound, _ in before.buckets) != bounds:
            return
        now, then = _each(after), _each(before)
        self.merge(bounds, [max(0, a - b) for a, b in zip(now, then, strict=True)])

    def merge(self, bounds: tuple[float, ...], counts: Iterable[int]) -> None:
        """The same with counts of each bucket, the last of which has no bound."""
        if bounds != self.bounds:
            self.bounds, self.counts = bounds, [0] * (len(bounds) + 1)
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]

    @property
    def count(self) -> int:
        """How many in all."""
        return sum(self.counts)

    def percentile(self, share: float = SHARE) -> float | None:
        """The seconds that this share does not exceed, as if each bucket were evenly full; None of nothing.

        Of what exceeds every bound, the highest bound is told.
        """
        wanted, below = share * self.count, 0
        if not wanted:
            return None
        for index, count in enumerate(self.counts):
            if below + count >= wanted and count:
                if index == len(self.bounds):
                    return self.bounds[-1] if self.bounds else None
                low = self.bounds[index - 1] if index else 0.0
                return low + (self.bounds[index] - low) * (wanted - below) / count
            below += count
        return self.bounds[-1] if self.bounds else None


def _each(latency: Latency) -> list[int]:
    """Counts of each bucket and of what exceeds the last, out of the cumulative ones."""
    counts = [count for _, count in latency.buckets] + [latency.count]
    return [after - before for before, after in zip([0, *counts], counts, strict=False)]
