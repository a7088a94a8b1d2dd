"""Totals of the replicas of one revision, and the timing of their streams."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from plimsoll_gateway.demand.records import EVENT_GAP_BOUNDS, FIRST_BYTE_BOUNDS, Spread


class Durations:
    """A histogram of durations with rising bounds. A duration counts in the first bucket whose bound is not below
    it.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._seconds = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Add `times` durations of `seconds` each."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._seconds += seconds * times

    def spread(self) -> Spread:
        """Return the distribution."""
        below = list(accumulate(self._counts))
        return Spread(below[-1], self._seconds, tuple(zip(self._bounds, below, strict=False)))


_DATA = b"data:"
_END = b"\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
"""Keep-alive event of Anthropic's API, sent in place of comments."""


class RevisionTotals:
    """Totals of one revision; they never decrease."""

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.broken = 0
        self.first_byte = Durations(FIRST_BYTE_BOUNDS)
        self.event_gap = Durations(EVENT_GAP_BOUNDS)

    def answered(self, status: int) -> None:
        """Count a response with this status; 500 and above also count as errors."""
        self.requests += 1
        if status >= 500:
            self.errors += 1

    def unanswered(self) -> None:
        """Count a request without a response, which is also an error."""
        self.requests += 1
        self.errors += 1

    def broke(self) -> None:
        """Count a response that ended early because of its replica."""
        self.broken += 1


class Pulse:
    """Measures one streamed response: the time to its first event, and the gaps between events. The events of a chunk
    share the time since the chunk before it equally.

    Comments and pings before the first event, which a replica sends while a model wakes, do not count.
    """

    def __init__(self, totals: RevisionTotals, came: float) -> None:
        """`came`: time of the request's arrival, by time.monotonic."""
        self.first: float | None = None  # seconds from the arrival to the first event
        self._gap_seconds = 0.0
        self._gaps = 0
        self._totals = totals
        self._last = came
        self._begun = False

    @property
    def mean_gap(self) -> float | None:
        """The mean time between two events, in seconds; None before the second one."""
        return self._gap_seconds / self._gaps if self._gaps else None

    def passed(self, chunk: bytes, now: float) -> None:
        """Record a chunk that arrived at `now`."""
        if not self._begun:
            if _DATA not in chunk.replace(PING, b""):
                return
            self._begun = True
            self.first = now - self._last
            self._totals.first_byte.add(self.first)
            gaps = chunk.count(_END) - 1
            if gaps > 0:
                self._gaps = gaps
                self._totals.event_gap.add(0.0, gaps)
        else:
            events = chunk.count(_END)
            if not events:
                return
            self._gap_seconds += now - self._last
            self._gaps += events
            self._totals.event_gap.add((now - self._last) / events, events)
        self._last = now
