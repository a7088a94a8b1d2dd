"""Who has which served name: of several objects that claim one, the oldest."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from plimsoll_operator.identity import Object, ObjectKey, key_of
from plimsoll_operator.spec import Spec, created, served_names

Rank = tuple[datetime, ObjectKey]


class NameRegistry:
    """The claims of every ModelDeployment that is watched. What it answers takes as long as a name has claims."""

    def __init__(self) -> None:
        self._claims: dict[ObjectKey, tuple[Rank, frozenset[str]]] = {}
        self._by_name: dict[str, dict[ObjectKey, Rank]] = {}

    def note(self, item: Object) -> set[ObjectKey]:
        """Take note of an object; returns the others whose names this may give or take."""
        key = key_of(item)
        rank, names = (created(item), key), frozenset(served_names(item))
        if self._claims.get(key) == (rank, names):
            return set()
        before = self._drop(key)
        self._claims[key] = (rank, names)
        for name in names:
            self._by_name.setdefault(name, {})[key] = rank
        return self._sharing(before | names, key)

    def forget(self, key: ObjectKey) -> set[ObjectKey]:
        """An object is gone; returns those that may have its names now."""
        return self._sharing(self._drop(key), key)

    def holders(self, spec: Spec) -> tuple[tuple[str, str], ...]:
        """(name, object) of each of the spec's names that an older object has."""
        mine = (spec.created, spec.key)
        taken = []
        for name in spec.served_names:
            claims = [rank for rank in self._by_name.get(name, {}).values() if rank < mine]
            if claims:
                taken.append((name, str(min(claims)[1])))
        return tuple(taken)

    def check_integrity(self) -> None:
        """Raise AssertionError where the index and the claims contradict each other."""
        claims = {(name, key, rank) for key, (rank, names) in self._claims.items() for name in names}
        assert claims == {(name, key, rank) for name, found in self._by_name.items() for key, rank in found.items()}
        assert all(self._by_name.values()), "a name that nobody claims is kept"

    def _drop(self, key: ObjectKey) -> frozenset[str]:
        """Returns the names that it had claimed."""
        _, names = self._claims.pop(key, (None, frozenset[str]()))
        for name in names:
            del self._by_name[name][key]
            if not self._by_name[name]:
                del self._by_name[name]
        return names

    def _sharing(self, names: Iterable[str], but: ObjectKey) -> set[ObjectKey]:
        return {key for name in names for key in self._by_name.get(name, ())} - {but}
