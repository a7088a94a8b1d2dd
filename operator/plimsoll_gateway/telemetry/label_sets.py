"""Metric series by owner, created on first use and removed from the registry together."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any, Generic, TypeVar

from prometheus_client import Counter, Gauge, Histogram

FamilyT = TypeVar("FamilyT", Counter, Gauge, Histogram)
"""A metric, or its series with given labels: prometheus_client has one class for both."""
OwnerT = TypeVar("OwnerT", bound=Hashable)

MOST_GONE = 256
"""Deleted owners whose series are kept until the next scrape."""


class Series:
    """Series that share their first labels. Cached, since finding one in its metric costs more than adding to it."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        self._labels = labels
        self._made: dict[tuple[Counter | Gauge | Histogram, tuple[str, ...]], Any] = {}

    def of(self, family: FamilyT, *more: str) -> FamilyT:
        """Return the series of a metric with `more` labels after the shared ones."""
        found: FamilyT | None = self._made.get((family, more))
        if found is None:
            found = self._made[family, more] = family.labels(*self._labels, *more)
        return found

    def remove(self) -> None:
        """Remove these series from their metrics."""
        for family, more in self._made:
            family.remove(*self._labels, *more)
        self._made.clear()


class Owners(Generic[OwnerT]):
    """The metric series of each owner, a model or an API key, until `keep` removes them."""

    def __init__(self) -> None:
        self._series: dict[OwnerT, Series] = {}

    def __len__(self) -> int:
        return len(self._series)

    def of(self, owner: OwnerT, labels: tuple[str, ...]) -> Series:
        """Return the series of one owner."""
        found = self._series.get(owner)
        if found is None:
            found = self._series[owner] = Series(labels)
        return found

    def keep(self, there: Collection[OwnerT], most_gone: int = 0) -> None:
        """Remove the series of owners that are not in `there`, the oldest first, until `most_gone` of them remain."""
        gone = [owner for owner in self._series if owner not in there]
        for owner in gone[: max(0, len(gone) - most_gone)]:
            self._series.pop(owner).remove()
