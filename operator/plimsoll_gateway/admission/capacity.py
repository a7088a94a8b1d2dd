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
    """How many requests each model in the routing table accepts: HEADROOM for each sequence that its replicas batch.

    Keeps the last reported batch size of a model for times when it has no replica.
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
        """Take the last reported number of slots of this replica as that of each replica of the model."""
        slots = self._picker.loads.slots(replica.id)
        if slots is not None:
            self._slots[model.key] = slots

    def now(self, name: str) -> int | None:
        """Return how many requests the ready replicas of a served name accept at the same time.

        Without a ready replica: 0 if one is expected, so that requests wait for it, else None. None also for an unknown
        name.
        """
        model = self._store.find(name)
        if model is None:
            return None
        return self._takes(model.ready_for(name)) or (0 if model.wakes else None)

    def together(self, names: Collection[str]) -> int:
        """Return how many requests the ready replicas that serve any of these names of one model accept at the same
        time.
        """
        ready: dict[str, Replica] = {}
        for name in names:
            model = self._store.find(name)
            ready |= {} if model is None else {replica.id: replica for replica in model.ready_for(name)}
        return self._takes(tuple(ready.values()))

    def later(self, name: str) -> int:
        """Return how many requests the model of a name accepts at the same time, once it has its most replicas; 1 for
        an unknown name.
        """
        model = self._store.find(name)
        return 1 if model is None else math.ceil(HEADROOM * self._expected(model))

    def places(self, model: Model) -> int | None:
        """Return how many sequences the model's ready replicas batch at the same time; without one, how many the most
        replicas that it scales to will. None if no replica is ready or expected.
        """
        ready = model.ready_replicas
        if ready:
            return self._together(ready)
        return self._expected(model) if model.wakes else None

    def _takes(self, replicas: Sequence[Replica]) -> int:
        return math.ceil(HEADROOM * self._together(replicas))

    def _together(self, replicas: Sequence[Replica]) -> int:
        """Return how many sequences all of these replicas batch at the same time."""
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
