"""The number of requests that a model runs at the same time, from its ready or its expected replicas."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, RoutingTable, TableStore
from plimsoll_gateway.routing.loads import UNKNOWN_SLOTS
from plimsoll_gateway.routing.pick import Picker

MOST_SUMS = 4096
HEADROOM = 1.25
"""Requests admitted for each sequence that the replicas batch. The surplus waits at the replica and starts as soon
as a sequence ends.
"""


class Capacity:
    """Capacities of the models in the routing table. Remembers the batch size of a model's replicas while it has
    none.
    """

    def __init__(self, store: TableStore, picker: Picker) -> None:
        self._store = store
        self._picker = picker
        self._slots: dict[ObjectKey, int] = {}
        # Sequences batched by a tuple of replicas, by its identity. Cleared if the table or a replica's report changes.
        self._sums: dict[int, tuple[Sequence[Replica], int]] = {}
        self._changes = 0
        store.listen(self._keep)

    def heard(self, model: Model, replica: Replica) -> None:
        """Remember the batch size that a replica of the model reported."""
        slots = self._picker.loads.slots(replica.id)
        if slots is not None:
            self._slots[model.key] = slots

    def now(self, name: str) -> int | None:
        """Return the requests that the name's ready replicas accept; 0 if a replica is expected, None if none is."""
        model = self._store.find(name)
        if model is None:
            return None
        return self._takes(model.ready_for(name)) or (0 if model.wakes else None)

    def together(self, names: Collection[str]) -> int:
        """Return the requests accepted by the ready replicas that serve any of these names of one model."""
        ready: dict[str, Replica] = {}
        for name in names:
            model = self._store.find(name)
            ready |= {} if model is None else {replica.id: replica for replica in model.ready_for(name)}
        return self._takes(tuple(ready.values()))

    def later(self, name: str) -> int:
        """Return the requests the model accepts after it has scaled up to its maximum."""
        model = self._store.find(name)
        return 1 if model is None else math.ceil(HEADROOM * self._expected(model))

    def places(self, model: Model) -> int | None:
        """Return the sequences that the ready replicas batch, or that the expected ones will; None if none is
        expected.
        """
        ready = model.ready_replicas
        if ready:
            return self._together(ready)
        return self._expected(model) if model.wakes else None

    def _takes(self, replicas: Sequence[Replica]) -> int:
        return math.ceil(HEADROOM * self._together(replicas))

    def _together(self, replicas: Sequence[Replica]) -> int:
        """Return the sequences that these replicas batch."""
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
