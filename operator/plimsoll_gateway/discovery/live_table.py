"""A routing table that is updated model by model, instead of being built from all models after each change."""

from __future__ import annotations

from bisect import bisect_left, insort
from types import MappingProxyType

from plimsoll_cluster.served_names.policy import FREE, NamePolicy
from plimsoll_cluster.served_names.record import Record
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, RoutingTable, age, build_table


class LiveTable:
    """Models in order of age, and for each served name the models that claim it, oldest first.

    `policy` refuses some of the claims.
    """

    def __init__(self, policy: NamePolicy = FREE) -> None:
        self._policy = policy
        self._by_key: dict[ObjectKey, Model] = {}
        self._ordered: list[Model] = []
        self._claims: dict[str, list[Model]] = {}
        self._owners: dict[str, Model] = {}

    def put(self, model: Model) -> bool:
        """Add or replace a model. Returns whether the table changed."""
        if self._by_key.get(model.key) == model:
            return False
        self.drop(model.key)
        self._by_key[model.key] = model
        insort(self._ordered, model, key=age)
        for name in frozenset(model.served_names):
            insort(self._claims.setdefault(name, []), model, key=age)
            self._own(name)
        return True

    def drop(self, key: ObjectKey) -> bool:
        """Remove a model. Returns whether it existed."""
        model = self._by_key.pop(key, None)
        if model is None:
            return False
        _remove(self._ordered, model)
        for name in frozenset(model.served_names):
            _remove(self._claims[name], model)
            self._own(name)
        return True

    def use_record(self, record: Record) -> bool:
        """Replace the record of served names. Returns whether a name has a new owner."""
        self._policy, names = self._policy.with_record(record)
        before = [self._owners.get(name) for name in names]
        for name in names & self._claims.keys():
            self._own(name)
        return before != [self._owners.get(name) for name in names]

    def snapshot(self) -> RoutingTable:
        """Return an immutable copy of the table."""
        return RoutingTable(tuple(self._ordered), MappingProxyType(self._owners.copy()))

    def check_integrity(self) -> None:
        """Raise AssertionError if this differs from a table built from all of its models."""
        table = self.snapshot()
        table.check_integrity(self._policy)
        assert table == build_table(self._by_key.values(), self._policy)
        assert all(self._claims.values()), "a name without claims has an entry"

    def _own(self, name: str) -> None:
        """Assign a name to the oldest claim that the policy does not refuse."""
        claims = self._claims[name]
        owner = next((model for model in claims if self._policy.refusal(name, model.key.namespace) is None), None)
        if owner is None:
            self._owners.pop(name, None)
        else:
            self._owners[name] = owner
        if not claims:
            del self._claims[name]


def _remove(ordered: list[Model], model: Model) -> None:
    del ordered[bisect_left(ordered, age(model), key=age)]
