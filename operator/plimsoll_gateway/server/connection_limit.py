"""The limit on the connections of one server: each uses memory, and clients can open any number.

At the limit, the connection that has been idle for longest is closed for a new one. If none is idle, the new one may
only request health probes, and gets an error for everything else: a kubelet whose probe is refused would restart a
gateway that is merely busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from plimsoll_gateway.telemetry.metrics import Metrics

MOST_EXTRA = 64
"""The most connections beyond the limit; the newest stay."""
YOUNG_SECONDS = 1.0
"""A connection is not closed for another before it had this time to send its request."""


class Connection(Protocol):
    """A connection that can be closed."""

    def give_way(self) -> None:
        """Close the connection for another one."""


class ConnectionLimit:
    """The open connections. Use on the event loop only. A connection is idle from its start, or the end of a
    response, to the end of its next request's headers.
    """

    def __init__(self, most: int, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._metrics = metrics
        self._clock = clock
        self._open: set[Connection] = set()
        self._idle: dict[Connection, float] = {}  # start of the idle time, longest first
        self._extra: dict[Connection, None] = {}  # beyond the limit, oldest first

    def __len__(self) -> int:
        return len(self._open) + len(self._extra)

    def opened(self, connection: Connection) -> bool:
        """Add a connection. Returns whether it is within the limit; otherwise it may only request probes."""
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
        """Record that the headers of a request have arrived."""
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Record the end of a response."""
        if connection in self._open:
            self._idle.pop(connection, None)
            self._idle[connection] = self._clock()

    def refused(self) -> None:
        """Count a refused request of a connection beyond the limit."""
        self._metrics.connections_closed.labels("refused").inc()

    def closed(self, connection: Connection) -> None:
        """Remove a connection. Further calls have no effect."""
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
        """Raise AssertionError if the records contradict each other."""
        assert len(self._open) <= self.most, f"{len(self._open)} of {self.most} are open"
        assert len(self._extra) <= MOST_EXTRA, f"{len(self._extra)} are open beyond the limit"
        assert self._idle.keys() <= self._open, "a connection is idle that is not open"
        assert not self._open & self._extra.keys(), "a connection is both within and beyond the limit"
        assert list(self._idle.values()) == sorted(self._idle.values()), "idle connections are not in order"
