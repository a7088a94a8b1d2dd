"""A table that changes model by model: what a change costs does not depend on how long it takes to read everything."""

from __future__ import annotations

from bisect import bisect_left, insort
from types import MappingProxyType

from plimsoll_gateway.table import Model, ObjectKey, Table, age, build_table


class LiveTable:
    """The models, in order of age, and for each served name who claims it, the oldest first."""

    def __init__(self) -> None:
        self._by_key: dict[ObjectKey, Model] = {}
        self._ordered: list[Model] = []
        self._claims: dict[str, list[Model]] = {}
        self._owners: dict[str, Model] = {}

    def put(self, model: Model) -> bool:
        """Add a model, or replace the one of its key; whether that changes anything."""
        if self._by_key.get(model.key) == model:
            return False
        self.drop(model.key)
        self._by_key[model.key] = model
        insort(self._ordered, model, key=age)
        for name in frozenset(model.served_names):
            insort(self._claims.setdefault(name, []), model, key=age)
            self._owners[name] = self._claims[name][0]
        return True

    def drop(self, key: ObjectKey) -> bool:
        """Remove a model; whether there was one."""
        model = self._by_key.pop(key, None)
        if model is None:
            return False
        _remove(self._ordered, model)
        for name in frozenset(model.served_names):
            claims = self._claims[name]
            _remove(claims, model)
            if claims:
                self._owners[name] = claims[0]
            else:
                del self._claims[name], self._owners[name]
        return True

    def snapshot(self) -> Table:
        """The table as it is now; it does not change any more."""
        return Table(tuple(self._ordered), MappingProxyType(self._owners.copy()))

    def check_integrity(self) -> None:
        """Raise AssertionError where this is not the table that would be made of its models from nothing."""
        table = self.snapshot()
        table.check_integrity()
        assert table == build_table(self._by_key.values())
        assert {name: claims[0] for name, claims in self._claims.items()} == self._owners


def _remove(ordered: list[Model], model: Model) -> None:
    del ordered[bisect_left(ordered, age(model), key=age)]
