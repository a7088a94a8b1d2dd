"""Cold starts: the time from the first request until a replica was ready, and until a response began."""

from __future__ import annotations

import time
from collections.abc import Callable

from plimsoll_gateway.discovery.routing_table import ObjectKey, RoutingTable, TableStore
from plimsoll_gateway.telemetry.metrics import Metrics

READY, FIRST_BYTE = "ready", "first_byte"
STALE_SECONDS = 300.0
"""A response that begins later than this after a replica was ready is not one for which a request waited."""


class ColdStarts:
    """Measures from the first request that is held for a model. If all held requests give up, nothing is measured."""

    def __init__(self, store: TableStore, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._waiting: dict[ObjectKey, float] = {}
        self._ready: dict[ObjectKey, tuple[float, float]] = {}
        store.listen(self._table_changed)

    def held(self, key: ObjectKey) -> None:
        """Record that a request waits for a replica of the model.

        Its series begin at 0 now: rate() does not see the increase to a first value.
        """
        if key not in self._waiting:
            self._waiting[key] = self._clock()
            for until in (READY, FIRST_BYTE):
                self._metrics.of(key, self._metrics.cold_start, until)

    def released(self, key: ObjectKey) -> None:
        """Record that no request waits for a replica of the model."""
        self._waiting.pop(key, None)

    def answered(self, key: ObjectKey) -> None:
        """Record that a response of the model has begun."""
        found = self._ready.pop(key, None) if self._ready else None
        if found is not None and self._clock() - found[1] <= STALE_SECONDS:
            self._observe(key, FIRST_BYTE, found[0])

    def _table_changed(self, table: RoutingTable) -> None:
        if self._ready:
            self._forget(table)
        if not self._waiting:
            return
        for model in table.models:
            if model.key in self._waiting and any(replica.ready for replica in model.replicas):
                began = self._waiting.pop(model.key)
                self._ready[model.key] = (began, self._clock())
                self._observe(model.key, READY, began)

    def _forget(self, table: RoutingTable) -> None:
        """Remove models that are gone, or whose first response is too late."""
        there, stale = {model.key for model in table.models}, self._clock() - STALE_SECONDS
        self._ready = {key: found for key, found in self._ready.items() if key in there and found[1] >= stale}

    def _observe(self, key: ObjectKey, until: str, began: float) -> None:
        self._metrics.of(key, self._metrics.cold_start, until).observe(self._clock() - began)
