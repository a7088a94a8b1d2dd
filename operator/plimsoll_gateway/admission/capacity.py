"""How many requests a model takes at once: by the replicas that it has, or by those that it will have."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, RoutingTable, TableStore
from plimsoll_gateway.routing.loads import UNKNOWN_SLOTS
from plimsoll_gateway.routing.pick import Picker

MOST_SUMS = 4096
HEADROOM = 1.25
"""Requests let through for each place in the replicas' batches: the next ones are there when a place becomes free."""


class Capacity:
    """Of the models of a table. What a model's replicas batch is remembered while it has none."""

    def __init__(self, store: TableStore, picker: Picker) -> None:
        self._store = store
        self._picker = picker
        self._slots: dict[ObjectKey, int] = {}
        # What replicas batch together, by the identity of their row, while the table and what each says are the same.
        self._sums: dict[int, tuple[Sequence[Replica], int]] = {}
        self._changes = 0
        store.listen(self._keep)

    def heard(self, model: Model, replica: Replica) -> None:
        """A replica has told of itself."""
        slots = self._picker.loads.slots(replica.id)
        if slots is not None:
            self._slots[model.key] = slots

    def now(self, name: str) -> int | None:
        """Requests that its ready replicas take; 0 while one has yet to come, None where none will."""
        model = self._store.find(name)
        if model is None:
            return None
        return self._takes(model.ready_for(name)) or (0 if model.wakes else None)

    def together(self, names: Collection[str]) -> int:
        """Requests that those ready replicas take that answer to any of these names; they are of one model."""
        ready: dict[str, Replica] = {}
        for name in names:
            model = self._store.find(name)
            ready |= {} if model is None else {replica.id: replica for replica in model.ready_for(name)}
        return self._takes(tuple(ready.values()))

    def closed(self, name: str) -> bool:
        """Whether `now` is 0, for less work where no replica can be missing."""
        model = self._store.find(name)
        return model is not None and model.wakes and not model.ready_for(name)

    def later(self, name: str) -> int:
        """Requests that it takes once all the replicas are there that may be made."""
        model = self._store.find(name)
        return 1 if model is None else math.ceil(HEADROOM * self._expected(model))

    def places(self, model: Model) -> int | None:
        """Sequences that its ready replicas batch, or those that will be there; None where none will."""
        ready = model.ready_replicas
        if ready:
            return self._together(ready)
        return self._expected(model) if model.wakes else None

    def _takes(self, replicas: Sequence[Replica]) -> int:
        return math.ceil(HEADROOM * self._together(replicas))

    def _together(self, replicas: Sequence[Replica]) -> int:
        """The sequences that they batch."""
        if self._changes != self._picker.loads.changes or len(self._sums) >= MOST_SUMS:
            self._sums.clear()
            self._changes = self._picker.loads.changes
        found = self._sums.get(id(replicas))
        if found is None or found[0] is not replicas:
            found = self._sums[id(replicas)] = (replicas, self._picker.capacity(replicas))
        return found[1]

    def _expected(self, model: Model) -> int:
        return max(1, model.scales_to) * self._slots.get(model.key, UNKNOWN_SLOTS)

    def _keep(self, table: RoutingTable) -> None:
        self._sums.clear()
        if self._slots:
            known = {model.key for model in table.models}
            self._slots = {key: slots for key, slots in self._slots.items() if key in known}
