"""What stores must show before an object's next pass: everything that its last passes wrote.

A pass that decided by a copy from before its own writes would make each pod twice. So a write leaves an expectation,
and the object's passes are put off until its stores meet it. If the result of a write is unknown, the next pass first
asks for that one object (`Unknown`). If a store does not show a known write for long, its collection is listed again:
a list shows every write that ended before it began. Time alone proves nothing.
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
"""A watch tells of a write within milliseconds; one that takes this long has been lost."""


class Expectation(Protocol):
    """Something that a store will hold."""

    @property
    def store(self) -> Store[Any]:
        """Where."""

    @property
    def namespace(self) -> str:
        """In which namespace."""

    @property
    def met(self) -> bool:
        """Whether it does."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A write to this object, which the server gave this version."""

    store: Store[Any]
    key: ObjectKey
    version: int

    @property
    def namespace(self) -> str:
        """The object's."""
        return self.key.namespace

    @property
    def met(self) -> bool:
        """Whether the store has that version of the object, or a later one."""
        return self.store.has_reached(self.key, self.version)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A write to this object whose outcome is unknown. It is never met: `Expectations.learn` replaces it."""

    store: Store[Any]
    key: ObjectKey

    @property
    def namespace(self) -> str:
        """The object's."""
        return self.key.namespace

    @property
    def met(self) -> bool:
        """Never."""
        return False


@dataclass(frozen=True, slots=True)
class Gone:
    """The deletion of the object with this uid, which the store had."""

    store: Store[Any]
    key: ObjectKey
    uid: str

    @property
    def namespace(self) -> str:
        """The object's."""
        return self.key.namespace

    @property
    def met(self) -> bool:
        """Whether it is going, or gone."""
        entry = self.store.get(self.key)
        return entry is None or entry.uid != self.uid or entry.deleting


@dataclass(frozen=True, slots=True)
class Listed:
    """A list that begins after now."""

    store: Store[Any]
    namespace: str
    number: int

    @property
    def met(self) -> bool:
        """Whether it, or a later one, is done."""
        return self.store.part_of(self.namespace).lists_done >= self.number


class Expectations:
    """Those of every object. `put_off`: objects that wanted a pass and have to wait for the stores."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[Key, list[Expectation]] = {}
        self._since: dict[Key, float] = {}
        self.put_off: set[Key] = set()

    def written(self, key: Key, store: Store[Any], answer: Object) -> None:
        """A pass over `key` wrote an object, and this is the server's answer."""
        self._add(key, Reached(store, key_of(answer), version_of(answer)))

    def deleted(self, key: Key, store: Store[Any], child: ObjectKey, uid: str) -> None:
        """A pass over `key` deleted an object, or found it gone."""
        self._add(key, Gone(store, child, uid))

    def unsure(self, key: Key, store: Store[Any], child: ObjectKey) -> None:
        """A pass over `key` wrote or deleted an object, and the outcome is unknown."""
        self._add(key, Unknown(store, child))

    def unknown(self, key: Key) -> list[Unknown]:
        """The writes of passes over `key` whose outcome is unknown."""
        return [expected for expected in self._open.get(key, ()) if isinstance(expected, Unknown)]

    def learn(self, key: Key, unknown: Unknown, found: Object | None) -> None:
        """The server was asked for the object of an unknown write, and has `found` now."""
        left = [expected for expected in self._open.get(key, ()) if expected != unknown]
        entry = unknown.store.get(unknown.key)
        if found is not None:
            left.append(Reached(unknown.store, unknown.key, version_of(found)))
        elif entry is not None:
            left.append(Gone(unknown.store, unknown.key, entry.uid))
        self._open[key] = left

    def may_pass(self, key: Key) -> bool:
        """Whether the stores have seen all that was written for this object. If not, it is put off."""
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
        """Whether the last pass over `key` made the change of this version, and nothing waits for it to be seen."""
        if key in self.put_off:
            return False
        found = [expected for expected in self._open.get(key, ()) if isinstance(expected, Reached)]
        return any(expected.store is store and expected.version == version for expected in found)

    def forget(self, key: Key) -> None:
        """Expect nothing more for an object."""
        self._open.pop(key, None)
        self._since.pop(key, None)
        self.put_off.discard(key)

    def _add(self, key: Key, expected: Expectation) -> None:
        self._since[key] = self._clock()
        self._open.setdefault(key, []).append(expected)
