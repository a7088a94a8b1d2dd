"""Series for what is counted of each request: as prometheus_client shows its own, for a fifth of the work.

All of it is changed on the event loop, so that no figure needs a lock, and no step of a histogram a search from below.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector


class Shown(Protocol):
    """One series of a family."""

    kind: str

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """What follows the family's name, the labels beside the series' own, and the figure."""


ChildT = TypeVar("ChildT", bound=Shown)


class Count:
    """A number that rises."""

    kind = "counter"
    __slots__ = ("_made", "value")

    def __init__(self) -> None:
        self.value = 0
        self._made = time.time()

    def inc(self, more: int = 1) -> None:
        """So many more."""
        self.value += more

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """The total, and since when it is counted."""
        yield "_total", {}, self.value
        yield "_created", {}, self._made


class Level:
    """A number that rises and falls: `with` counts one for as long as its block runs."""

    kind = "gauge"
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def __enter__(self) -> None:
        self.value += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.value -= 1

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Where it is now."""
        yield "", {}, self.value


class Spans:
    """Durations in seconds, by upper bounds that rise."""

    kind = "histogram"
    __slots__ = ("_bounds", "_counts", "_made", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = [float(bound) for bound in bounds]
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._made = time.time()

    def observe(self, seconds: float) -> None:
        """One of them."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """How many were at most as long as each bound, and all together."""
        below = list(accumulate(self._counts))
        for bound, count in zip((*map(str, self._bounds), "+Inf"), below, strict=True):
            yield "_bucket", {"le": bound}, count
        yield "_count", {}, below[-1]
        yield "_sum", {}, self._sum
        yield "_created", {}, self._made


class Family(Collector, Generic[ChildT]):
    """The series of one name, by the values of their labels; `new` makes one."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], new: Callable[[], ChildT], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._text = text
        self._names = tuple(labels)
        self._new = new
        self._kind = new().kind
        self._made: dict[tuple[str, ...], ChildT] = {}
        registry.register(self)

    def labels(self, *values: str) -> ChildT:
        """The one with these values, made when it is first wanted."""
        found = self._made.get(values)
        if found is None:
            found = self._made[values] = self._new()
        return found

    def remove(self, *values: str) -> None:
        """It is shown no longer."""
        self._made.pop(values, None)

    def collect(self) -> Iterator[Metric]:
        """As they are now."""
        family = Metric(self._name, self._text, self._kind)
        for values, child in self._made.items():
            own = dict(zip(self._names, values, strict=True))
            for suffix, more, figure in child.samples():
                family.add_sample(self._name + suffix, {**own, **more}, figure)
        yield family
