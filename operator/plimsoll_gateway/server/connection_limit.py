"""The connections of one server, bounded in number: each costs memory, and clients make as many as they like.

Where there are as many as may be, the one that has been idle for longest gives way to a new one. Where none is idle,
the new one may ask whether the gateway lives, and hears nothing else but that there are too many: a kubelet whose probe
is refused would restart a gateway that is merely busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from plimsoll_gateway.telemetry.metrics import Metrics

MOST_EXTRA = 64
"""Connections beyond the bound that are heard, the newest ones."""
YOUNG_SECONDS = 1.0
"""A connection does not give way before it had time to send its request."""


class Connection(Protocol):
    """One of them."""

    def give_way(self) -> None:
        """Close it."""


class ConnectionLimit:
    """Changed on the event loop only. A connection is idle from its beginning, or the end of an answer, to the end of
    its next request's head.
    """

    def __init__(self, most: int, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._metrics = metrics
        self._clock = clock
        self._open: set[Connection] = set()
        self._idle: dict[Connection, float] = {}  # since when, the longest first
        self._extra: dict[Connection, None] = {}  # beyond the bound, the oldest first

    def __len__(self) -> int:
        return len(self._open) + len(self._extra)

    def opened(self, connection: Connection) -> bool:
        """A new one. Whether it is within the bound; else it is good for probes alone."""
        if len(self._open) >= self.most:
            self._evict()
        if len(self._open) >= self.most:
            self._add_extra(connection)
            return False
        self._open.add(connection)
        self._idle[connection] = self._clock()
        self._tell()
        return True

    def busy(self, connection: Connection) -> None:
        """The head of a request has come."""
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """An answer has ended."""
        if connection in self._open:
            self._idle.pop(connection, None)
            self._idle[connection] = self._clock()

    def refused(self) -> None:
        """One beyond the bound asked for something that it cannot have."""
        self._metrics.connections_closed.labels("refused").inc()

    def closed(self, connection: Connection) -> None:
        """It is gone, or as good as gone. The second time it changes nothing."""
        self._open.discard(connection)
        self._idle.pop(connection, None)
        self._extra.pop(connection, None)
        self._tell()

    def _evict(self) -> None:
        oldest = next(iter(self._idle), None)
        if oldest is not None and self._clock() - self._idle[oldest] >= YOUNG_SECONDS:
            self._close(oldest, "idle")

    def _add_extra(self, connection: Connection) -> None:
        if len(self._extra) >= MOST_EXTRA:
            self._close(next(iter(self._extra)), "refused")
        self._extra[connection] = None
        self._tell()

    def _close(self, connection: Connection, why: str) -> None:
        self.closed(connection)
        self._metrics.connections_closed.labels(why).inc()
        connection.give_way()

    def _tell(self) -> None:
        self._metrics.connections.set(len(self))

    def check_integrity(self) -> None:
        """Raise AssertionError where the records contradict each other."""
        assert len(self._open) <= self.most, f"{len(self._open)} of {self.most} are open"
        assert len(self._extra) <= MOST_EXTRA, f"{len(self._extra)} are open beyond the bound"
        assert self._idle.keys() <= self._open, "one is idle that is not open"
        assert not self._open & self._extra.keys(), "one is within the bound and beyond it"
        assert list(self._idle.values()) == sorted(self._idle.values()), "the idle ones are not in their order"
