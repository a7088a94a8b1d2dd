"""Rules, claims, deletions and restarts: no namespace gets a name that it may not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from operator_support.objects import EPOCH, Json, model, stamp
from operator_support.passes import run

from plimsoll_cluster.served_names.policy import NamePolicy
from plimsoll_cluster.served_names.record import Kept, format_record, parse_record
from plimsoll_cluster.served_names.rules import NameRules, Rule
from plimsoll_cluster.store import Store
from plimsoll_gateway.discovery.cluster_table import ClusterTable
from plimsoll_gateway.discovery.routing_table import TableStore
from plimsoll_operator.build.image import Image
from plimsoll_operator.controller.name_recorder import NameRecorder
from plimsoll_operator.kube.api import Api, ApiError
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.kube.expectations import Expectations
from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.planning.nodes import NodeRegistry
from plimsoll_operator.spec.identity import Object, ObjectKey
from plimsoll_operator.spec.model_deployment import read_spec

GRACE = timedelta(seconds=10)
RECORD = ObjectKey("serving", "names")
SPACES = st.sampled_from(["prod", "team"])
NAMED = st.sets(st.sampled_from("abcd"), min_size=1)
RULES = st.lists(
    st.builds(
        Rule,
        st.lists(st.sampled_from(["a", "b", "b*", "*"]), min_size=1, max_size=2).map(tuple),
        st.lists(st.sampled_from(["prod", "te*", "*"]), max_size=2).map(tuple),
    ),
    max_size=2,
)


class Cluster(Api):
    """An API server with ModelDeployments, and one ConfigMap whose writes compare its version."""

    def __init__(self) -> None:
        self.version = 1
        self.models: dict[ObjectKey, Json] = {}
        self.data: dict[str, str] = {}
        self.record_version = 1
        self.writes = 0
        self.fate = "done"

    async def change_config_map(self, key: ObjectKey, version: int, data: Mapping[str, str | None]) -> Object:
        assert key == RECORD
        if version != self.record_version:
            raise ApiError(409, "it has changed")
        if self.fate == "refused":
            raise ApiError(503, "overloaded")
        self.writes += 1
        self.put_record({name: text for name, text in {**self.data, **data}.items() if text is not None})
        if self.fate == "lost":
            raise ApiError(None, "the answer is lost")
        return self.record

    def put_record(self, data: Mapping[str, str]) -> None:
        self.version += 1
        self.record_version = self.version
        self.data = dict(data)

    @property
    def record(self) -> Json:
        meta = {"namespace": RECORD.namespace, "name": RECORD.name, "uid": "r"}
        return {"metadata": {**meta, "resourceVersion": str(self.record_version)}, "data": dict(self.data)}

    def show(self, models: Store[Any], record: Store[Any] | None) -> None:
        """Let a store see all objects."""
        part = models.part_of("")
        entries = [models.resource.entry(item) for item in self.models.values()]
        part.end_list(part.begin_list(), {entry.key: entry for entry in entries}, self.version)
        if record is not None:
            entry = record.resource.entry(self.record)
            part = record.part_of(RECORD.namespace)
            part.end_list(part.begin_list(), {entry.key: entry}, self.version)


class Operator:
    """One operator process."""

    def __init__(self, cluster: Cluster, rules: NameRules, now: Callable[[], datetime]) -> None:
        self.stores, self.names = Stores(None, name_record=RECORD), NameRegistry(NamePolicy(rules))
        context = ReconcileContext(
            cluster,
            self.stores,
            Expectations(),
            Image("runtime:1"),
            self.names,
            NodeRegistry(),
            "test",
            may_act=lambda: True,
            clock=now,
        )
        self.record = self.stores.of("ConfigMap")
        self.names.follow(self.stores.models, lambda _: None)
        self.recorder = NameRecorder(context, RECORD, GRACE, lambda _: None)


def claims_of(items: Iterable[Object]) -> set[tuple[str, str]]:
    """Return the namespaces and names that objects claim."""
    return {(item["metadata"]["namespace"], name) for item in items for name in item["spec"]["model"]["servedNames"]}


class Names(RuleBasedStateMachine):
    """`claimed`: when an operator last saw a claim that the record contained; the grace period counts from there."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster, self.now, self.created = Cluster(), EPOCH, EPOCH
        self.name_rules = NameRules()
        self.claimed: dict[tuple[str, str], datetime] = {}
        self.held: dict[str, Kept] = {}

    @initialize(rules=RULES)
    def begin(self, rules: list[Rule]) -> None:
        self.name_rules = NameRules(rules)
        self.shown, self.due = TableStore(), list[Callable[[], None]]()
        self.gateway = ClusterTable(None, self.shown, soon=self.due.append, rules=self.name_rules, record=RECORD)
        for store in (self.gateway.pods, self.gateway.hosts):
            part: Any = store.part_of("")
            part.end_list(part.begin_list(), {}, 1)
        self.restart_the_operator()

    @rule()
    def restart_the_operator(self) -> None:
        self.operator = Operator(self.cluster, self.name_rules, lambda: self.now)

    @rule(space=SPACES, name=st.sampled_from(["m", "n"]), names=NAMED, older=st.booleans())
    def apply(self, space: str, name: str, names: set[str], older: bool) -> None:
        """Create an object, or change the names of an existing one."""
        key, self.cluster.version = ObjectKey(space, name), self.cluster.version + 1
        known = self.cluster.models.get(key)
        self.created += timedelta(seconds=1)
        item = model(name, model={"source": "demo://x", "servedNames": sorted(names)})
        item["metadata"] |= {
            "namespace": space,
            "uid": f"u{self.cluster.version}",
            "creationTimestamp": stamp(EPOCH if older else self.created),
        }
        if known is not None:
            item["metadata"] |= {name: known["metadata"][name] for name in ("uid", "creationTimestamp")}
            item["status"] = known.get("status", {})
        item["metadata"]["resourceVersion"] = str(self.cluster.version)
        self.cluster.models[key] = item

    @precondition(lambda self: self.cluster.models)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.cluster.version += 1
        del self.cluster.models[data.draw(st.sampled_from(sorted(self.cluster.models)))]

    @precondition(lambda self: self.cluster.models)
    @rule(data=st.data(), ready=st.booleans())
    def a_pass_writes_a_status(self, data: st.DataObject, ready: bool) -> None:
        """Write a status from the operator's view, which may be outdated."""
        key = data.draw(st.sampled_from(sorted(self.cluster.models)))
        seen = self.operator.stores.models.get(key)
        if seen is None or seen.uid != self.cluster.models[key]["metadata"]["uid"]:
            return
        spec, self.cluster.version = read_spec(seen.value), self.cluster.version + 1
        lost = {conflict.name for conflict in self.operator.names.conflicts(spec)}
        status = {"servedNames": [name for name in spec.served_names if name not in lost], "readyReplicas": int(ready)}
        item = {**self.cluster.models[key], "status": status}
        item["metadata"] = {**item["metadata"], "resourceVersion": str(self.cluster.version)}
        self.cluster.models[key] = item

    @rule()
    def the_operator_sees(self) -> None:
        self.cluster.show(self.operator.stores.models, self.operator.record)

    @rule(fate=st.sampled_from(["done", "done", "lost", "refused"]))
    def the_operator_writes(self, fate: str) -> None:
        if not (self.operator.stores.models.synced and self.operator.record.synced):
            return
        self.cluster.fate = fate
        run(self.operator.recorder.write())
        self.cluster.fate = "done"

    @rule(seconds=st.integers(1, 12))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(what=st.sampled_from(["models", "record", "both"]))
    def the_gateway_sees(self, what: str) -> None:
        """One of its watches may lag behind the other."""
        record = self.gateway.record
        assert record is not None
        if what != "record":
            self.cluster.show(self.gateway.models, None)
        if what != "models":
            entry = record.resource.entry(self.cluster.record)
            part = record.part_of(RECORD.namespace)
            part.end_list(part.begin_list(), {entry.key: entry}, self.cluster.version)
        for call in self.due:
            call()
        self.due.clear()

    @rule()
    def all_comes_to_rest(self) -> None:
        """Operator and gateway then agree about all names, and nothing more is written."""
        for _ in range(4):
            self.the_operator_sees()
            run(self.operator.recorder.write())
            self.note()
        self.the_operator_sees()
        before = self.cluster.writes
        assert run(self.operator.recorder.write()) is None or any(" " in text for text in self.cluster.data.values())
        assert self.cluster.writes == before
        self.the_gateway_sees("both")
        assert self.shown.current is not None
        claims = {name for item in self.cluster.models.values() for name in item["spec"]["model"]["servedNames"]}
        for name in claims:
            owner = self.shown.current.find(name)
            assert self.operator.names.owner(name) == (owner and owner.key)
        for item in self.cluster.models.values():
            spec = read_spec(item)
            lost = {conflict.name for conflict in self.operator.names.conflicts(spec)}
            for name in spec.served_names:
                owner = self.shown.current.find(name)
                assert (name in lost) is (owner is None or owner.key != spec.key)
        for name, kept in parse_record(self.cluster.data).items():
            assert kept.until is None or kept.until > self.now, "ended entries are removed"
            assert kept.until is None or (kept.namespace, name) not in claims_of(self.cluster.models.values())

    @invariant()
    def note(self) -> None:
        """A name leaves the record when a rule gives it to others, or when no claim was seen for the whole grace
        period.
        """
        seen = [entry.value for entry in self.operator.stores.models] if hasattr(self, "operator") else []
        stored = parse_record(self.cluster.data)
        told = {(kept.namespace, name) for name, kept in stored.items() if kept.until is None}
        self.claimed |= dict.fromkeys(claims_of(seen) & told, self.now)
        for name, kept in self.held.items():
            now = stored.get(name)
            if now is not None and now.namespace == kept.namespace:
                continue
            ended = self.claimed[kept.namespace, name] + GRACE <= self.now + timedelta(seconds=1)
            assert ended or self.name_rules.refusal(name, kept.namespace) is not None, f"{name} left {kept.namespace}"
        self.held = stored

    @invariant()
    def no_name_goes_where_it_may_not(self) -> None:
        if not hasattr(self, "gateway") or self.shown.current is None or self.due:
            return
        self.shown.current.check_integrity(self.policy())
        for name, owner in self.shown.current.owners.items():
            assert self.name_rules.refusal(name, owner.key.namespace) is None
            kept = self.policy().record.get(name)
            assert (
                kept is None or kept.namespace == owner.key.namespace or self.name_rules.refusal(name, kept.namespace)
            )

    def policy(self) -> NamePolicy:
        """Return the policy from the gateway's view of the record."""
        record = self.gateway.record
        entry = None if record is None else record.get(RECORD)
        return NamePolicy(self.name_rules, {} if entry is None else parse_record(entry.value))


Names.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestNames = Names.TestCase


def test_a_name_stays_while_no_operator_runs() -> None:
    """An object is deleted and created again while the operator restarts, and another namespace claims its name."""
    world = Names()
    world.begin([])
    world.apply("prod", "m", {"a"}, older=False)
    world.apply("team", "n", {"a"}, older=False)
    world.the_operator_sees()
    item = world.cluster.models[ObjectKey("prod", "m")]
    world.cluster.version += 1
    item["metadata"]["resourceVersion"] = str(world.cluster.version)
    item["status"] = {"servedNames": ["a"], "readyReplicas": 1}
    world.the_operator_sees()
    run(world.operator.recorder.write())
    assert world.cluster.data == {"prod": "a\n"}
    world.the_gateway_sees("both")
    del world.cluster.models[ObjectKey("prod", "m")]
    world.the_gateway_sees("both")
    assert world.shown.find("a") is None, "no object serves it, and the other namespace must not"
    world.restart_the_operator()
    world.the_operator_sees()
    assert run(world.operator.recorder.write()) == GRACE.total_seconds()
    assert world.cluster.data == {"prod": "a 2026-01-01T00:00:10Z\n"}
    world.the_operator_sees()
    (conflict,) = world.operator.names.conflicts(read_spec(world.cluster.models[ObjectKey("team", "n")]))
    assert (conflict.reason.value, conflict.why) == ("ServedNameKept", "for prod until 2026-01-01T00:00:10Z")
    world.apply("prod", "m", {"a"}, older=False)
    world.the_gateway_sees("both")
    found = world.shown.find("a")
    assert found is not None
    assert found.key == ObjectKey("prod", "m"), "immediately, before an operator has seen it"
    world.the_operator_sees()
    run(world.operator.recorder.write())
    assert world.cluster.data == {"prod": "a\n"}


def test_a_record_that_people_have_edited_is_put_right() -> None:
    """A name that a rule gives to others is removed immediately."""
    world = Names()
    world.begin([Rule(("c",), ("prod",))])
    world.apply("prod", "m", {"a"}, older=False)
    world.cluster.put_record({"prod": "a tomorrow\n\n", "team": "a\nb 2999-01-01T00:00:00Z\nc\n"})
    world.the_operator_sees()
    run(world.operator.recorder.write())
    ends = world.now + GRACE
    assert world.cluster.data == format_record({"a": Kept("prod"), "b": Kept("team", ends)}), (
        "not beyond the grace period"
    )
