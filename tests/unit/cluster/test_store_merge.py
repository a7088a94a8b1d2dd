"""A part fed as kopf feeds it: events in order for each object alone, lost deletions, and our own lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from plimsoll_cluster import store as module
from plimsoll_cluster.keys import ObjectKey
from plimsoll_cluster.resource import Entry, Resource
from plimsoll_cluster.store import Store

THINGS: Resource[Any] = Resource("Thing", "/apis/x/v1", "things", lambda item: item["metadata"]["resourceVersion"])
NAMES = ("a", "b")


def thing(name: str, version: int, uid: str = "") -> dict[str, Any]:
    meta = {"namespace": "ns", "name": name, "uid": uid or f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": meta}


def event(kind: str | None, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": item}


def listed(*items: dict[str, Any]) -> dict[ObjectKey, Entry[Any]]:
    return {entry.key: entry for entry in map(THINGS.entry, items)}


@dataclass
class Listing:
    """A response to a list request that has not arrived."""

    number: int
    items: list[dict[str, Any]]
    version: int


class Merged(RuleBasedStateMachine):
    """Two names on a server; `history` has each state of each name, None if it does not exist."""

    @initialize()
    def begin(self) -> None:
        self.version = 1
        self.objects: dict[str, dict[str, Any]] = {}
        self.history: dict[str, list[tuple[int, int | None]]] = {name: [(0, None)] for name in NAMES}
        self.told: list[dict[str, Any]] = []
        self.received = 0
        self.queues: dict[str, list[dict[str, Any]]] = {}
        self.listing: Listing | None = None
        self.store: Store[Any] = Store(THINGS, None)
        self.part = self.store.parts[None]
        self.copy: dict[str, int] = {}
        self.store.listen(self.follow)
        self.reached: dict[str, int] = dict.fromkeys(NAMES, 0)

    def follow(self, changes: Any) -> None:
        """Apply all changes to a copy, as a listener."""
        for change in changes:
            assert self.copy.get(change.key.name) == (change.before and change.before.version)
            if change.after is None:
                del self.copy[change.key.name]
            else:
                self.copy[change.key.name] = change.after.version

    @rule(name=st.sampled_from(NAMES))
    def put(self, name: str) -> None:
        self.version += 1
        known = self.objects.get(name)
        uid = known["metadata"]["uid"] if known else f"u-{self.version}"
        self.objects[name] = thing(name, self.version, uid)
        self.history[name].append((self.version, self.version))
        self.told.append(event("MODIFIED" if known else "ADDED", self.objects[name]))

    @precondition(lambda self: self.objects)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.objects)))
        self.version += 1
        gone = thing(name, self.version, self.objects.pop(name)["metadata"]["uid"])
        self.history[name].append((self.version, None))
        self.told.append(event("DELETED", gone))

    @precondition(lambda self: self.received < len(self.told))
    @rule()
    def kopf_receives(self) -> None:
        self.queue(self.told[self.received])
        self.received += 1

    @rule()
    def kopf_lists(self) -> None:
        """kopf lists and continues from there; it does not report the deletions in between."""
        for item in self.objects.values():
            self.queue(event(None, item))
        self.received = len(self.told)
        self.part.doubt()

    def queue(self, received: dict[str, Any]) -> None:
        self.queues.setdefault(received["object"]["metadata"]["uid"], []).append(received)

    @precondition(lambda self: self.queues)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.queues)))
        received = self.queues[uid].pop(0)
        if not self.queues[uid]:
            del self.queues[uid]
        self.part.merge(received)

    @rule()
    def list_begins_or_ends(self) -> None:
        if self.listing is None:
            self.listing = Listing(self.part.begin_list(), list(self.objects.values()), self.version)
        else:
            self.part.end_list(self.listing.number, listed(*self.listing.items), self.listing.version)
            self.listing = None

    @invariant()
    def it_shows_a_state_that_was(self) -> None:
        """Each name is shown as it was at a version at or after the one that the store has reached."""
        if not hasattr(self, "store"):
            return
        self.store.check_integrity()
        assert self.copy == {entry.key.name: entry.version for entry in self.store}
        for name in NAMES:
            key = ObjectKey("ns", name)
            reached, entry = self.part.version_of(key), self.store.get(key)
            assert reached >= self.reached[name]
            self.reached[name] = reached
            shown = None if entry is None else entry.version
            assert self.store.has_reached(key, reached)
            assert not self.store.has_reached(key, reached + 1)
            state = [at for version, at in self.history[name] if version <= reached][-1]
            assert shown == state, f"{name} was {state} at {reached}"

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        while self.received < len(self.told):
            self.kopf_receives()
        for received in [received for queue in self.queues.values() for received in queue]:
            self.part.merge(received)
        self.queues.clear()
        if self.listing is not None:
            self.list_begins_or_ends()
        if self.part.outdated:
            self.list_begins_or_ends()
            self.list_begins_or_ends()
        assert not self.part.outdated
        assert {entry.key.name: str(entry.version) for entry in self.store} == {
            name: item["metadata"]["resourceVersion"] for name, item in self.objects.items()
        }


Merged.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestMerged = Merged.TestCase


def test_deletions_are_remembered_up_to_a_number_and_then_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DELETED", 3)
    store: Store[Any] = Store(THINGS, None)
    part = store.parts[None]
    part.end_list(part.begin_list(), {}, 1)
    asked: list[None] = []
    part.on_doubt(lambda: asked.append(None))
    for number in range(4):
        assert not part.outdated
        part.merge(event("DELETED", thing(f"t{number}", number + 2)))
    assert part.outdated
    part.begin_list()
    part.merge(event("DELETED", thing("t4", 6)))
    part.end_list(part.lists_begun, {}, 9)
    assert len(asked) == 1
    part.merge(event("DELETED", thing("t9", 10)))
    assert not part.outdated, "the list makes the others unnecessary"


def test_a_server_that_was_restored_from_a_backup_is_believed() -> None:
    store: Store[Any] = Store(THINGS, None)
    part = store.parts[None]
    part.end_list(part.begin_list(), listed(thing("a", 90), thing("b", 95)), 100)
    part.end_list(part.begin_list(), listed(thing("a", 20)), 50)
    assert {entry.key.name: entry.version for entry in store} == {"a": 20}
    assert part.version == 50
