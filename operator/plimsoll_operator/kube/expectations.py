"""Expectations: the writes that the stores must show before an object's next reconcile.

A reconcile that decided by a copy from before its own writes would create each pod twice. So each write leaves an
expectation, and the object's reconciles are deferred until the stores meet it. If the result of a write is unknown, the
next reconcile first reads that object (`Unknown`). If a store does not show a known write for long, its collection is
listed again: a list shows every write that ended before it began. Elapsed time alone proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from plimsoll_cluster.keys import Key, Object, ObjectKey, key_of
from plimsoll_cluster.resource import version_of
from plimsoll_cluster.store import Store

PATIENCE_SECONDS = 30.0
"""A watch shows a write within milliseconds; after this time the event is considered lost."""


class Expectation(Protocol):
    """A change that a store must show before the next reconcile."""

    @property
    def store(self) -> Store[Any]:
        """The store that must show it."""

    @property
    def namespace(self) -> str:
        """The namespace of the changed object."""

    @property
    def met(self) -> bool:
        """Whether the store shows it."""


@dataclass(frozen=True, slots=True)
class _OfObject:
    store: Store[Any]
    key: ObjectKey

    @property
    def namespace(self) -> str:
        """The object's namespace."""
        return self.key.namespace


@dataclass(frozen=True, slots=True)
class Reached(_OfObject):
    """A write after which the object has this resource version."""

    version: int

    @property
    def met(self) -> bool:
        """Whether the store has that version of the object, or a later one."""
        return self.store.has_reached(self.key, self.version)


@dataclass(frozen=True, slots=True)
class Unknown(_OfObject):
    """A write to this object with an unknown result. It is never met: `Expectations.learn` replaces it."""

    met = False


@dataclass(frozen=True, slots=True)
class Gone(_OfObject):
    """The deletion of the object with this uid, which the store had."""

    uid: str

    @property
    def met(self) -> bool:
        """Whether the store shows the object as being deleted, or no longer has it."""
        entry = self.store.get(self.key)
        return entry is None or entry.uid != self.uid or entry.deleting


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of the collection that starts after this expectation was made. `number`: the count of lists with it."""

    store: Store[Any]
    namespace: str
    number: int

    @property
    def met(self) -> bool:
        """Whether this list or a later one is complete."""
        return self.store.part_of(self.namespace).lists_done >= self.number


class Expectations:
    """The expectations of all objects. `put_off`: objects whose reconcile waits for the stores."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[Key, list[Expectation]] = {}
        self._since: dict[Key, float] = {}
        self.put_off: set[Key] = set()

    def written(self, key: Key, store: Store[Any], answer: Object) -> None:
        """Expect an object that a reconcile of `key` wrote; `answer` is the server's response."""
        self._add(key, Reached(store, key_of(answer), version_of(answer)))

    def deleted(self, key: Key, store: Store[Any], child: ObjectKey, uid: str) -> None:
        """Expect the deletion of an object by a reconcile of `key`."""
        self._add(key, Gone(store, child, uid))

    def unsure(self, key: Key, store: Store[Any], child: ObjectKey) -> None:
        """Expect a write or deletion by a reconcile of `key` with an unknown result."""
        self._add(key, Unknown(store, child))

    def unknown(self, key: Key) -> list[Unknown]:
        """Return the writes of reconciles of `key` whose result is unknown."""
        return [expected for expected in self._open.get(key, ()) if isinstance(expected, Unknown)]

    def learn(self, key: Key, unknown: Unknown, found: Object | None) -> None:
        """Replace an unknown write by an expectation of what the server has: `found`, None if it has no such object."""
        left = [expected for expected in self._open.get(key, ()) if expected != unknown]
        entry = unknown.store.get(unknown.key)
        if found is not None:
            left.append(Reached(unknown.store, unknown.key, version_of(found)))
        elif entry is not None:
            left.append(Gone(unknown.store, unknown.key, entry.uid))
        self._open[key] = left

    def may_pass(self, key: Key) -> bool:
        """Return whether the stores show all writes of reconciles of `key`. If not, its reconcile is deferred."""
        left = [expected for expected in self._open.get(key, ()) if not expected.met]
        if not left:
            self.forget(key)
            return True
        if self._clock() - self._since[key] >= PATIENCE_SECONDS:
            places = {(expected.store, expected.namespace) for expected in left}
            left = [Listed(store, namespace, store.part_of(namespace).doubt()) for store, namespace in places]
            self._since[key] = self._clock()
        self._open[key] = left
        self.put_off.add(key)
        return False

    def is_own(self, key: Key, store: Store[Any], version: int) -> bool:
        """Return whether the last reconcile of `key` itself wrote the object of this resource version, so that the
        store's change needs no reconcile. False while a reconcile of `key` is deferred.
        """
        if key in self.put_off:
            return False
        found = [expected for expected in self._open.get(key, ()) if isinstance(expected, Reached)]
        return any(expected.store is store and expected.version == version for expected in found)

    def forget(self, key: Key) -> None:
        """Discard the expectations of an object."""
        self._open.pop(key, None)
        self._since.pop(key, None)
        self.put_off.discard(key)

    def _add(self, key: Key, expected: Expectation) -> None:
        self._since[key] = self._clock()
        self._open.setdefault(key, []).append(expected)
