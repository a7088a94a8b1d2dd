"""Which models want to be in which pool."""

from __future__ import annotations

from plimsoll_operator.identity import Object, ObjectKey, key_of
from plimsoll_operator.spec import pool_of


class Members:
    """The wishes of every ModelDeployment that is watched. A pool need not exist."""

    def __init__(self) -> None:
        self._pool_of: dict[ObjectKey, ObjectKey] = {}
        self._members: dict[ObjectKey, set[ObjectKey]] = {}

    def note(self, item: Object) -> set[ObjectKey]:
        """Take note of an object; returns the pools that it concerns, the one that it leaves included."""
        return self._put(key_of(item), pool_of(item))

    def forget(self, key: ObjectKey) -> set[ObjectKey]:
        """An object is gone; returns the pool that it was in."""
        return self._put(key, None)

    def of(self, pool: ObjectKey) -> list[ObjectKey]:
        """The models that want to be in a pool, in order."""
        return sorted(self._members.get(pool, ()))

    def pool_of(self, model: ObjectKey) -> ObjectKey | None:
        """Where a model wants to be; None for one with pods of its own."""
        return self._pool_of.get(model)

    def of_namespace(self, namespace: str) -> set[ObjectKey]:
        """The pools in which models of a namespace want to be, and that are of another one."""
        return {
            pool
            for model, pool in self._pool_of.items()
            if model.namespace == namespace and pool.namespace != namespace
        }

    def check_integrity(self) -> None:
        """Raise AssertionError where the two directions differ."""
        assert self._pool_of == {model: pool for pool, models in self._members.items() for model in models}
        assert all(self._members.values()), "a pool without members is kept"

    def _put(self, key: ObjectKey, pool: ObjectKey | None) -> set[ObjectKey]:
        before = self._pool_of.pop(key, None)
        if before is not None:
            self._members[before].discard(key)
            if not self._members[before]:
                del self._members[before]
        if pool is not None:
            self._pool_of[key] = pool
            self._members.setdefault(pool, set()).add(key)
        return {found for found in (before, pool) if found is not None}
