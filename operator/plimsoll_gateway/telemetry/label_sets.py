"""The series of one label, made when they are first wanted and taken out of the registry together."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any, Generic, TypeVar

from prometheus_client import Counter, Gauge, Histogram

FamilyT = TypeVar("FamilyT", Counter, Gauge, Histogram)
"""The series of one name, and each of them: prometheus_client has one class for both."""
OwnerT = TypeVar("OwnerT", bound=Hashable)

MOST_GONE = 256
"""Owners that are gone and whose series wait for a scrape to see them a last time."""


class Series:
    """Those whose labels begin alike. To find one in its family costs more than to add to it."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        self._labels = labels
        self._made: dict[tuple[Counter | Gauge | Histogram, tuple[str, ...]], Any] = {}

    def of(self, family: FamilyT, *more: str) -> FamilyT:
        """The one of a family, with these labels behind ours."""
        found: FamilyT | None = self._made.get((family, more))
        if found is None:
            found = self._made[family, more] = family.labels(*self._labels, *more)
        return found

    def remove(self) -> None:
        """Take all of them out of their families."""
        for family, more in self._made:
            family.remove(*self._labels, *more)
        self._made.clear()


class Owners(Generic[OwnerT]):
    """What has series, of which those that are gone shall have none: kept until they were shown a last time."""

    def __init__(self) -> None:
        self._series: dict[OwnerT, Series] = {}

    def __len__(self) -> int:
        return len(self._series)

    def of(self, owner: OwnerT, labels: tuple[str, ...]) -> Series:
        """Those of one owner."""
        found = self._series.get(owner)
        if found is None:
            found = self._series[owner] = Series(labels)
        return found

    def keep(self, there: Collection[OwnerT], most_gone: int = 0) -> None:
        """Forget all others but `most_gone`, those first that were first asked for."""
        gone = [owner for owner in self._series if owner not in there]
        for owner in gone[: max(0, len(gone) - most_gone)]:
            self._series.pop(owner).remove()
