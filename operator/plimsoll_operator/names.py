"""Who has which served name: of several objects that claim one, the oldest."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from plimsoll_operator.identity import Object, ObjectKey, key_of
from plimsoll_operator.spec import Spec, created, served_names

Rank = tuple[datetime, ObjectKey]


class NameRegistry:
    """The claims of every ModelDeployment that is watched."""

    def __init__(self) -> None:
        self._claims: dict[ObjectKey, tuple[Rank, frozenset[str]]] = {}

    def note(self, item: Object) -> set[ObjectKey]:
        """Take note of an object; returns the others whose names this may give or take."""
        key = key_of(item)
        before = self._claims.get(key, (None, frozenset[str]()))
        now = ((created(item), key), frozenset(served_names(item)))
        self._claims[key] = now
        return set() if now == before else self._sharing(before[1] | now[1], key)

    def forget(self, key: ObjectKey) -> set[ObjectKey]:
        """An object is gone; returns those that may have its names now."""
        _, names = self._claims.pop(key, (None, frozenset[str]()))
        return self._sharing(names, key)

    def holders(self, spec: Spec) -> tuple[tuple[str, str], ...]:
        """(name, object) of each of the spec's names that an older object has."""
        mine = (spec.created, spec.key)
        taken = []
        for name in spec.served_names:
            claims = [rank for rank, names in self._claims.values() if name in names and rank < mine]
            if claims:
                taken.append((name, str(min(claims)[1])))
        return tuple(taken)

    def _sharing(self, names: Iterable[str], but: ObjectKey) -> set[ObjectKey]:
        wanted = frozenset(names)
        return {key for key, (_, claimed) in self._claims.items() if key != but and claimed & wanted}
