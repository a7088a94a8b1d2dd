"""Store: the last seen state of all objects of a kind, and the resource version it is complete to.

Only lists and events fill a store. It may lag behind the server, but an object in it never goes back to an older
version. Our own watch delivers a collection's events in the order of the server's writes (`Part.take`). kopf keeps that
order only among the events of one object (`Part.merge`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from plimsoll_cluster.keys import ObjectKey
from plimsoll_cluster.resource import Entry, Resource, T, version_of


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """The change of one object. `before` is None for a new object, `after` for a deleted one."""

    before: Entry[T] | None
    after: Entry[T] | None

    @property
    def key(self) -> ObjectKey:
        """The key of the changed object."""
        entry = self.after or self.before
        assert entry is not None
        return entry.key


MAX_DELETED = 10_000
"""The most deletions a part remembers between two lists (1 to 2 MB). Beyond it a list is requested, which makes them
unnecessary.
"""


def _nothing() -> None:
    """Do nothing: the default callback."""


Listener = Callable[[Sequence[Change[T]]], None]
"""Called with all changes of an event or a list, after the store has applied them."""


class Store(Generic[T]):
    """All objects of a kind in `namespaces`; None means all namespaces."""

    def __init__(self, resource: Resource[T], namespaces: Sequence[str] | None) -> None:
        self.resource = resource
        whole = namespaces is None or not resource.namespaced
        scopes: Sequence[str | None] = [None] if whole else list(namespaces or ())
        self.parts = {scope: Part(self, scope) for scope in scopes}
        self._entries: dict[ObjectKey, Entry[T]] = {}
        self._owned: dict[tuple[str, str], dict[ObjectKey, Entry[T]]] = {}
        self._listeners: list[tuple[Listener[T], Callable[[], None]]] = []
        self._listed = asyncio.Event()

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def synced(self) -> bool:
        """Whether each part has been listed at least once."""
        return self._listed.is_set()

    async def wait_synced(self) -> None:
        """Wait until each part has been listed at least once."""
        await self._listed.wait()

    def get(self, key: ObjectKey) -> Entry[T] | None:
        """Return the entry of a key, or None."""
        return self._entries.get(key)

    def owned(self, namespace: str, uid: str) -> tuple[Entry[T], ...]:
        """Return the objects of a namespace that the object with this uid controls.

        The namespace matters: a user who may create objects in another one could write any uid into them.
        """
        return tuple(self._owned.get((namespace, uid), {}).values())

    def part_of(self, namespace: str) -> Part[T]:
        """Return the part that contains the objects of a namespace."""
        return self.parts[None] if None in self.parts else self.parts[namespace]

    def has_reached(self, key: ObjectKey, version: int) -> bool:
        """Return whether the store includes all writes to the object up to a resource version."""
        return self.part_of(key.namespace).version_of(key) >= version

    def listen(self, changed: Listener[T], listed: Callable[[], None] = _nothing) -> None:
        """Call `changed` after each later change, and `listed` after each list, even one without changes."""
        self._listeners.append((changed, listed))

    def check_integrity(self) -> None:
        """Raise AssertionError if the index and the entries contradict each other."""
        owned = {key: entry for found in self._owned.values() for key, entry in found.items()}
        assert owned == {key: entry for key, entry in self._entries.items() if entry.owner is not None}
        for (namespace, uid), found in self._owned.items():
            assert found, "an owner without objects has an index entry"
            for key, entry in found.items():
                assert entry.owner is not None
                assert (key.namespace, entry.owner.uid) == (namespace, uid)
        assert all(key == entry.key for key, entry in self._entries.items())

    def _put(self, key: ObjectKey, after: Entry[T] | None) -> Change[T]:
        before = self._entries.pop(key, None)
        if before is not None and before.owner is not None:
            siblings = self._owned[key.namespace, before.owner.uid]
            del siblings[key]
            if not siblings:
                del self._owned[key.namespace, before.owner.uid]
        if after is not None:
            self._entries[key] = after
            if after.owner is not None:
                self._owned.setdefault((key.namespace, after.owner.uid), {})[key] = after
        return Change(before, after)

    def _replace(self, namespace: str | None, entries: Mapping[ObjectKey, Entry[T]], version: int) -> list[Change[T]]:
        """Apply a list of `version` and return the changes; entries of a newer version stay."""
        known = (entry for entry in self._entries.values() if namespace in (None, entry.key.namespace))
        gone = [entry.key for entry in known if entry.key not in entries and entry.version <= version]
        changes = [self._put(key, None) for key in gone]
        for key, entry in entries.items():
            before = self._entries.get(key)
            if before is not None and (before.version > version or _same(before, entry)):
                continue
            changes.append(self._put(key, entry))
        return changes

    def _tell(self, changes: Sequence[Change[T]]) -> None:
        for changed, _ in self._listeners:
            changed(changes)

    def _tell_listed(self) -> None:
        if all(part.lists_done for part in self.parts.values()):
            self._listed.set()
        for _, listed in self._listeners:
            listed()


def _same(one: Entry[Any], other: Entry[Any]) -> bool:
    return (one.uid, one.version) == (other.uid, other.version)


class Part(Generic[T]):
    """One collection on the server (a namespace's, or all): the state of its lists and events, which its source
    updates.

    `version`: the part includes all writes to the collection up to this resource version.
    Lists are numbered, so that one can wait for a list that started after an event: it includes everything written
    before.
    `failures` counts consecutive failed requests; `trouble` is the reason of the last one.
    """

    def __init__(self, store: Store[T], namespace: str | None) -> None:
        self.namespace = namespace
        self.resource = store.resource
        self.version = 0
        self.lists_begun = 0
        self.lists_done = 0
        self.failures = 0
        self.trouble = ""
        self._store = store
        self._deleted: dict[ObjectKey, int] = {}
        self._wanted = 1
        self._renew: Callable[[], None] = _nothing

    @property
    def outdated(self) -> bool:
        """Whether a list is due: the first one, or one that `doubt` requested."""
        return self.lists_done < self._wanted

    def version_of(self, key: ObjectKey) -> int:
        """Return the resource version up to which the part includes all writes to one object."""
        entry = self._store.get(key)
        return max(self.version, entry.version if entry is not None else 0, self._deleted.get(key, 0))

    def on_doubt(self, renew: Callable[[], None]) -> None:
        """Call `renew` at each later `doubt`, in place of the callback set before."""
        self._renew = renew

    def doubt(self) -> int:
        """Request a new list. Returns its number: `lists_done` reaches it when that list is done."""
        self._wanted = self.lists_begun + 1
        self._renew()
        return self._wanted

    def begin_list(self) -> int:
        """Record the start of a list and return its number."""
        self.lists_begun += 1
        return self.lists_begun

    def end_list(self, number: int, entries: Mapping[ObjectKey, Entry[T]], version: int) -> None:
        """Apply a complete list of `version`. A lower version than before means that the server was restored from a
        backup.
        """
        restored = version < self.version
        self._deleted = {} if restored else {key: at for key, at in self._deleted.items() if at > version}
        listed = {key: entry for key, entry in entries.items() if key not in self._deleted}
        changes = self._store._replace(self.namespace, listed, self.version if restored else version)
        self.succeed()
        self.version = version
        self.lists_done = number
        self._store._tell(changes)
        self._store._tell_listed()

    def succeed(self) -> None:
        """Record a successful request: reset the failures."""
        self.failures, self.trouble = 0, ""

    def fail(self, why: str) -> None:
        """Record a failed request with its reason."""
        self.failures += 1
        self.trouble = why

    def take(self, event: Mapping[str, Any]) -> None:
        """Apply an event of a watch that delivers all events of the collection in the server's order."""
        item = event["object"]
        self.succeed()
        self.version = version_of(item)
        if event["type"] == "BOOKMARK":
            return
        entry = self.resource.entry(item)
        self._store._tell([self._store._put(entry.key, None if event["type"] == "DELETED" else entry)])

    def merge(self, event: Mapping[str, Any]) -> None:
        """Apply an event that is in order only among the events of its object; outdated ones are ignored."""
        entry = self.resource.entry(event["object"])
        if entry.version <= self.version_of(entry.key):
            return
        is_gone = event["type"] == "DELETED"
        if is_gone:
            self._deleted[entry.key] = entry.version
            if len(self._deleted) > MAX_DELETED and not self.outdated:
                self.doubt()
        if not is_gone or self._store.get(entry.key) is not None:
            self._store._tell([self._store._put(entry.key, None if is_gone else entry)])
