"""Durations by upper bounds: as much as an average and a percentile need, in a few integers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from plimsoll_gateway.demand.records import Spread


class Durations:
    """Counts durations between bounds that rise; one is in the first bucket whose bound it does not exceed."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._seconds = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """So many of them, each as long as that."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._seconds += seconds * times

    def spread(self) -> Spread:
        """What was counted so far."""
        below = list(accumulate(self._counts))
        return Spread(below[-1], self._seconds, tuple(zip(self._bounds, below, strict=False)))
