"""The queue limit: the most requests of one model that may wait for a response; more are refused immediately.

A request that waits for a replica holds its body and two connections. Without a limit, one model that is full or loads
for long would fill the gateway's memory and affect all others; so each model has its own. A request whose response has
begun does not count: how much it holds depends on the client that reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from plimsoll_gateway.discovery.routing_table import Model, ObjectKey
from plimsoll_gateway.errors.refusals import overloaded
from plimsoll_gateway.telemetry.metrics import Metrics

WAITING_PER_PLACE = 64
"""The most waiting requests for each sequence that the ready or expected replicas batch. A later request would wait
longer than most clients do.
"""


class QueueLimit:
    """Counts the requests of each model whose response has not begun. Use on the event loop only."""

    def __init__(self, most: int, metrics: Metrics, places: Callable[[Model], int | None] = lambda _: None) -> None:
        """`most`: the upper bound of each model's limit.

        `places`: returns the number of sequences that a model's ready or expected replicas batch; None if none is
        expected. The limit is WAITING_PER_PLACE times this number if that is below `most`.
        """
        self._most = most
        self._metrics = metrics
        self._places = places
        self._waiting: dict[ObjectKey, int] = {}

    def waiting(self, model: Model) -> int:
        """Return the number of requests of a model that wait."""
        return self._waiting.get(model.key, 0)

    def enter(self, model: Model, name: str) -> QueueTicket:
        """Count a request as waiting and return its ticket, to be used with `with`. Raises Refusal 503 if the model's
        limit is reached. `name`: the served name in the request, for the error.
        """
        waiting, most = self._waiting.get(model.key, 0), self._bound(model)
        if waiting >= most:
            self._metrics.of(model.key, self._metrics.refused).inc()
            by_places = f"{WAITING_PER_PLACE} for each sequence that the replicas batch"
            raise overloaded(name, most, "--max-waiting" if most == self._most else by_places)
        self._waiting[model.key] = waiting + 1
        return QueueTicket(self, model.key)

    def _bound(self, model: Model) -> int:
        places = self._places(model)
        return self._most if not places else min(self._most, WAITING_PER_PLACE * places)

    def leave(self, key: ObjectKey) -> None:
        """Record that a request of the model stopped waiting."""
        left = self._waiting[key] - 1
        if left:
            self._waiting[key] = left
        else:
            del self._waiting[key]

    def check_integrity(self) -> None:
        """Raise AssertionError if a count is impossible."""
        assert all(0 < count <= self._most for count in self._waiting.values()), self._waiting


class QueueTicket:
    """One waiting request; it stops waiting at the end of the `with` block, or earlier by `leave`."""

    def __init__(self, limit: QueueLimit, key: ObjectKey) -> None:
        self._limit = limit
        self._key: ObjectKey | None = key

    def leave(self) -> None:
        """Stop waiting, since the response has begun. Further calls have no effect."""
        if self._key is not None:
            self._limit.leave(self._key)
            self._key = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
