"""Latency histograms: the counts between two reports, and percentiles."""

from __future__ import annotations

from collections.abc import Iterable

from plimsoll_operator.scaling.demand import Latency

SHARE = 0.95
"""The share of outputs that should meet a latency target."""


class Spread:
    """A latency histogram: number of outputs between bounds in seconds. Counts with other bounds start a new one."""

    def __init__(self) -> None:
        self.bounds: tuple[float, ...] = ()
        self.counts: list[int] = []

    def add(self, before: Latency | None, after: Latency) -> None:
        """Add the counts between two reports of a process; nothing without `before`, or if the bounds are missing or
        differ.
        """
        bounds = tuple(bound for bound, _ in after.buckets)
        if before is None or not bounds or tuple(bound for bound, _ in before.buckets) != bounds:
            return
        now, then = _each(after), _each(before)
        self.merge(bounds, [max(0, a - b) for a, b in zip(now, then, strict=True)])

    def merge(self, bounds: tuple[float, ...], counts: Iterable[int]) -> None:
        """Add counts by bucket; the last bucket has no upper bound."""
        if bounds != self.bounds:
            self.bounds, self.counts = bounds, [0] * (len(bounds) + 1)
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]

    @property
    def count(self) -> int:
        """The sum of all counts."""
        return sum(self.counts)

    def percentile(self, share: float = SHARE) -> float | None:
        """Return the seconds that this share (0 to 1) of the outputs does not exceed, interpolated within its bucket;
        None for an empty histogram.

        If it is above all bounds, return the highest bound.
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
    """Return the count of each bucket, and last the count above all bounds, from cumulative counts."""
    counts = [count for _, count in latency.buckets] + [latency.count]
    return [after - before for before, after in zip([0, *counts], counts, strict=False)]
