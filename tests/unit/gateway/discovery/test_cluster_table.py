"""The incremental table equals one built from scratch, after any events; waits for a change are woken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway_support.tables import table_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from plimsoll_cluster.served_names.policy import NamePolicy
from plimsoll_cluster.served_names.record import Kept, format_record, parse_record
from plimsoll_cluster.served_names.rules import NameRules, Rule
from plimsoll_cluster.store import Store
from plimsoll_gateway.discovery.cluster_table import ClusterTable
from plimsoll_gateway.discovery.live_table import LiveTable
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, RoutingTable, TableStore, build_table

Json = dict[str, Any]
NAMES, SPACES = st.sampled_from("ab"), st.sampled_from(["team", "team", "team", "other"])
UIDS, MOSTLY = st.sampled_from(["u1", "u1", "u1", "u2"]), st.sampled_from([True, True, True, False])
STATES = st.sampled_from(["Resident", "InHost", "Fetching", "Absent"])
SERVED = st.lists(st.sampled_from("abcd"), unique=True, max_size=3)


RULES = NameRules([Rule(("a",), ("team",))])
RECORD = ObjectKey("serving", "names")


class Following(RuleBasedStateMachine):
    """Objects are created, changed, deleted and created again under the same name, by events or complete lists.

    Only namespace `team` may use the name `a`, and a record of served names comes and changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.due: list[Callable[[], None]] = []
        self.store = TableStore()
        self.table = ClusterTable(["team", "other"], self.store, soon=self.due.append, rules=RULES, record=RECORD)
        self.data: dict[str, str] = {}
        self.version = 1
        self.truth: dict[str, dict[tuple[str, str], Json]] = {"models": {}, "pods": {}, "hosts": {}}

    @initialize(listed=MOSTLY)
    def begin(self, listed: bool) -> None:
        for kind in self.truth if listed else ():
            for space in ("team", "other"):
                self.list_anew(kind, space, set())
        if listed:
            self.list_the_record()

    @rule(namespaces=st.dictionaries(st.sampled_from("abcd"), SPACES), gone=st.booleans())
    def tell_of_the_record(self, namespaces: dict[str, str], gone: bool) -> None:
        self.data = format_record({name: Kept(space) for name, space in namespaces.items()})
        if self._record.lists_done:
            self._record.take({"type": "DELETED" if gone else "MODIFIED", "object": self._config_map()})
            self.data = {} if gone else self.data

    @rule()
    def list_the_record(self) -> None:
        entry = self._records.resource.entry(self._config_map())
        self._record.end_list(self._record.begin_list(), {entry.key: entry}, self.version)

    @rule(space=SPACES, name=NAMES, uid=UIDS, second=st.integers(0, 2), served=SERVED, ready=st.booleans())
    def tell_of_a_model(self, space: str, name: str, uid: str, second: int, served: list[str], ready: bool) -> None:
        meta = self._meta(space, name, f"{space}-{name}-{uid}") | {"creationTimestamp": f"2026-01-01T00:00:0{second}Z"}
        conditions = [{"type": "Ready", "status": str(ready), "message": "it loads"}]
        spec = {"model": {"source": "demo://x", "servedNames": served}}
        self._tell("models", {"metadata": meta, "spec": spec, "status": {"conditions": conditions}})

    @rule(
        space=SPACES,
        name=NAMES,
        owner=NAMES,
        owner_space=SPACES,
        uid=UIDS,
        ready=st.booleans(),
        address=st.sampled_from(["198.18.0.1", "198.18.0.2", "fd00::7", ""]),
        owned=MOSTLY,
    )
    def tell_of_a_pod(
        self, space: str, name: str, owner: str, owner_space: str, uid: str, ready: bool, address: str, owned: bool
    ) -> None:
        """Its owner may be in another namespace, or deleted."""
        meta = self._meta(space, name, f"pod-{space}-{name}")
        reference = {"kind": "ModelDeployment", "name": owner, "uid": f"{owner_space}-{owner}-{uid}"}
        meta["ownerReferences"] = [reference | {"controller": owned}]
        status = {"podIP": address, "conditions": [{"type": "Ready", "status": str(ready)}]}
        self._tell("pods", {"metadata": meta, "spec": {"containers": []}, "status": status})

    @rule(
        space=SPACES,
        name=NAMES,
        pod_space=SPACES,
        models=st.lists(st.tuples(SPACES, NAMES, STATES, SERVED), unique_by=lambda entry: entry[:2], max_size=3),
    )
    def tell_of_a_host(
        self, space: str, name: str, pod_space: str, models: list[tuple[str, str, str, list[str]]]
    ) -> None:
        """It has the name of its pod, and may claim an owner in another namespace."""
        meta = self._meta(space, name, f"host-{space}-{name}")
        meta["ownerReferences"] = [{"kind": "Pod", "name": name, "uid": f"pod-{pod_space}-{name}", "controller": True}]
        entries = [
            {"namespace": where, "name": model, "state": state, "servedNames": served}
            for where, model, state, served in models
        ]
        self._tell("hosts", {"metadata": meta, "status": {"models": entries}})

    @rule(kind=st.sampled_from(["models", "pods", "hosts"]), space=SPACES, name=NAMES)
    def tell_that_one_is_gone(self, kind: str, space: str, name: str) -> None:
        found = self.truth[kind].pop((space, name), None)
        part = self._part(kind, space)
        if found is not None and part.lists_done:
            self.version += 1
            found["metadata"]["resourceVersion"] = str(self.version)
            part.take({"type": "DELETED", "object": found})

    @rule(kind=st.sampled_from(["models", "pods", "hosts"]), space=SPACES, lost=st.sets(NAMES))
    def list_anew(self, kind: str, space: str, lost: set[str]) -> None:
        """Deletions in between show by absence from the list."""
        self.truth[kind] = {k: v for k, v in self.truth[kind].items() if k[0] != space or k[1] not in lost}
        part, read = self._part(kind, space), self._store(kind).resource.entry
        entries = [read(item) for (where, _), item in self.truth[kind].items() if where == space]
        self.version += 1
        part.end_list(part.begin_list(), {entry.key: entry for entry in entries}, self.version)

    @rule()
    def publish(self) -> None:
        assert len(self.due) <= 1, "simultaneous changes make one table"
        for call in self.due:
            call()
        self.due.clear()

    @invariant()
    def the_table_is_the_one_made_from_nothing(self) -> None:
        self.table.models.check_integrity()
        self.table.pods.check_integrity()
        self.table.hosts.check_integrity()
        if self.due:
            return
        if not all(store.synced for store in self.table.stores()):
            assert self.store.current is None
            return
        assert self.store.current is not None
        policy = NamePolicy(RULES, parse_record(self.data))
        self.store.current.check_integrity(policy)
        entries: list[Any] = [map(self._store(kind).resource.entry, self.truth[kind].values()) for kind in self.truth]
        expected = table_of(*entries, policy=policy)
        assert self.store.current == expected

    def teardown(self) -> None:
        self.publish()
        self.the_table_is_the_one_made_from_nothing()

    @property
    def _records(self) -> Store[Any]:
        assert self.table.record is not None
        return self.table.record

    @property
    def _record(self) -> Any:
        return self._records.part_of(RECORD.namespace)

    def _config_map(self) -> Json:
        return {"metadata": self._meta(*RECORD, "record"), "data": self.data}

    def _meta(self, space: str, name: str, uid: str) -> Json:
        self.version += 1
        return {"namespace": space, "name": name, "uid": uid, "resourceVersion": str(self.version)}

    def _tell(self, kind: str, item: Json) -> None:
        key = (item["metadata"]["namespace"], item["metadata"]["name"])
        self.truth[kind][key] = item
        part = self._part(kind, key[0])
        if part.lists_done:
            part.take({"type": "MODIFIED", "object": item})

    def _store(self, kind: str) -> Any:
        return {"models": self.table.models, "pods": self.table.pods, "hosts": self.table.hosts}[kind]

    def _part(self, kind: str, space: str) -> Any:
        return self._store(kind).part_of(space)


Following.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestFollowing = Following.TestCase


def model(name: str, *served: str, ready: bool = False, created: float = 1.0) -> Model:
    return Model(ObjectKey("team", name), served, created, "", (Replica(name, f"http://{name}", ready),))


class Changing(RuleBasedStateMachine):
    """A live table by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = NamePolicy(RULES)
        self.table = LiveTable(self.policy)
        self.models: dict[ObjectKey, Model] = {}

    @rule(name=NAMES, served=SERVED, created=st.sampled_from([1.0, 2.0]), ready=st.booleans())
    def put(self, name: str, served: list[str], created: float, ready: bool) -> None:
        made = model(name, *served, created=created, ready=ready)
        assert self.table.put(made) is (self.models.get(made.key) != made)
        self.models[made.key] = made

    @rule(spaces=st.dictionaries(st.sampled_from("abcd"), SPACES))
    def use_a_record(self, spaces: dict[str, str]) -> None:
        before = self.table.snapshot()
        self.policy = NamePolicy(RULES, {name: Kept(space) for name, space in spaces.items()})
        assert self.table.use_record(self.policy.record) is (self.table.snapshot() != before)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        key = ObjectKey("team", name)
        assert self.table.drop(key) is (self.models.pop(key, None) is not None)

    @invariant()
    def check(self) -> None:
        self.table.check_integrity()
        assert self.table.snapshot() == build_table(self.models.values(), self.policy)


Changing.TestCase.settings = settings(max_examples=100, deadline=None)
TestChanging = Changing.TestCase


def test_a_snapshot_stays_as_it_was() -> None:
    table = LiveTable()
    table.put(model("a", "x"))
    before = table.snapshot()
    table.put(model("b", "y"))
    table.drop(ObjectKey("team", "a"))
    assert before == build_table([model("a", "x")])


def table(*models: Model) -> RoutingTable:
    return build_table(models)


async def test_a_change_wakes_those_who_wait_for_it_and_nobody_else() -> None:
    store = TableStore()
    store.replace(table(model("a", "x"), model("b", "y")))
    waiting = [asyncio.create_task(store.changed(name, store.find(name))) for name in ("x", "x", "y", "new")]
    await asyncio.sleep(0)
    store.replace(table(model("a", "x", ready=True), model("b", "y")))
    first, second = await waiting[0], await waiting[1]
    assert first == second == model("a", "x", ready=True)
    assert [task.done() for task in waiting] == [True, True, False, False]
    store.replace(table(model("b", "y"), model("c", "new")))
    assert await waiting[3] == model("c", "new")
    assert not waiting[2].done()
    store.replace(table())
    assert await waiting[2] is None


async def test_a_change_before_the_wait_is_not_missed() -> None:
    store = TableStore()
    seen = store.find("x")
    store.replace(table(model("a", "x")))
    assert await store.changed("x", seen) == model("a", "x")


async def test_who_hangs_up_leaves_the_others_waiting() -> None:
    store = TableStore()
    gone, stays = (asyncio.create_task(store.changed("x", None)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait({gone})
    store.replace(table(model("a", "x")))
    assert await stays == model("a", "x")


def test_a_pod_of_a_pool_that_is_not_ready_any_more_is_cut_at_once() -> None:
    """Whatever its ModelHost says: the operator, which writes it, may be dead."""
    store, due = TableStore(), list[Callable[[], None]]()
    table = ClusterTable(["team"], store, soon=due.append)
    meta = {"namespace": "team", "uid": "u", "resourceVersion": "2", "creationTimestamp": "2026-01-01T00:00:00Z"}
    owner = {"kind": "RuntimePool", "name": "shared", "uid": "r", "controller": True}
    of_pod = {"kind": "Pod", "name": "h", "uid": "p", "controller": True}
    hosted = [{"namespace": "team", "name": "m", "state": "InHost", "servedNames": ["m"]}]

    def pod(ready: bool) -> Json:
        status = {"podIP": "198.18.0.1", "conditions": [{"type": "Ready", "status": str(ready), "reason": "x"}]}
        metadata = {**meta, "name": "h", "uid": "p", "ownerReferences": [owner]}
        return {"metadata": metadata, "spec": {"containers": []}, "status": status}

    items = {
        table.models: {"metadata": {**meta, "name": "m"}, "spec": {"model": {"source": "demo://x"}}},
        table.pods: pod(True),
        table.hosts: {"metadata": {**meta, "name": "h", "ownerReferences": [of_pod]}, "status": {"models": hosted}},
    }
    for kind, item in items.items():
        entry = kind.resource.entry(item)  # type: ignore[attr-defined]
        part = kind.part_of("team")  # type: ignore[attr-defined]
        part.end_list(part.begin_list(), {entry.key: entry}, 2)
    table.publish()
    assert [replica.ready for replica in _found(store)] == [True]
    table.pods.part_of("team").take({"type": "MODIFIED", "object": pod(False)})
    table.publish()
    assert [replica.ready for replica in _found(store)] == [False]


def _found(store: TableStore) -> tuple[Replica, ...]:
    model = store.find("m")
    assert model is not None
    return model.replicas
