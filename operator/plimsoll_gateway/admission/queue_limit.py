"""The queue limit: so many requests of each model may wait for a response, more are refused at once.

A request that waits for a replica holds its body and two connections. Without a bound, one model that is full or loads
for long would fill the gateway's memory and take the others down with it; so each model has a limit of its own. An
answer that has begun no longer waits: what it holds is bounded by the client that reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from plimsoll_gateway.discovery.routing_table import Model, ObjectKey
from plimsoll_gateway.errors.refusals import overloaded
from plimsoll_gateway.telemetry.metrics import Metrics

WAITING_PER_PLACE = 64
"""Requests that may wait for each sequence that the ready replicas batch at once, or will once they are there: whoever
comes later would wait longer than most clients do."""


class QueueLimit:
    """Counts the requests of each model whose answer is still to begin. Changed on the event loop only."""

    def __init__(self, most: int, metrics: Metrics, places: Callable[[Model], int | None] = lambda _: None) -> None:
        """`most`: of each model, whatever its replicas take. `places`: how many requests they batch at once, those that
        are ready or those that will be; None where none will.
        """
        self._most = most
        self._metrics = metrics
        self._places = places
        self._waiting: dict[ObjectKey, int] = {}

    def waiting(self, model: Model) -> int:
        """Requests of a model that wait now."""
        return self._waiting.get(model.key, 0)

    def enter(self, model: Model, name: str) -> QueueTicket:
        """A place for a request by that name, to be used with `with`. Raises Refusal 503 where none is left."""
        waiting, most = self._waiting.get(model.key, 0), self._bound(model)
        if waiting >= most:
            self._metrics.of(model.key, self._metrics.refused).inc()
            raise overloaded(
                name, most, "--max-waiting" if most == self._most else f"{WAITING_PER_PLACE} for each place"
            )
        self._waiting[model.key] = waiting + 1
        return QueueTicket(self, model.key)

    def _bound(self, model: Model) -> int:
        places = self._places(model)
        return self._most if not places else min(self._most, WAITING_PER_PLACE * places)

    def leave(self, key: ObjectKey) -> None:
        """One of them no longer waits."""
        left = self._waiting[key] - 1
        if left:
            self._waiting[key] = left
        else:
            del self._waiting[key]

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible."""
        assert all(0 < count <= self._most for count in self._waiting.values()), self._waiting


class QueueTicket:
    """One request's place; it is left at the end of the `with` block at the latest."""

    def __init__(self, limit: QueueLimit, key: ObjectKey) -> None:
        self._limit = limit
        self._key: ObjectKey | None = key

    def leave(self) -> None:
        """The answer has begun. The second time it changes nothing."""
        if self._key is not None:
            self._limit.leave(self._key)
            self._key = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
