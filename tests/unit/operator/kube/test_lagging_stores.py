"""Stores that lag behind the server by any amount: never a pod too many, and the wanted state in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from operator_support.objects import Json
from operator_support.passes import reconciler_of, run
from operator_support.server import CHILDREN, NAMESPACE, Fate, Server, ServerApi, model_body

from plimsoll_cluster.keys import Key, ObjectKey
from plimsoll_cluster.resource import Entry
from plimsoll_cluster.store import Part
from plimsoll_operator.controller.event_routing import merge_event, route_changes
from plimsoll_operator.kube.api import ApiError
from plimsoll_operator.kube.expectations import PATIENCE_SECONDS, Expectations
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.planning.nodes import NodeRegistry
from plimsoll_operator.spec.identity import HASH_LABEL, KIND, REVISION_LABEL, Object
from plimsoll_operator.spec.model_deployment import read_spec

NAMES = st.sampled_from(["a", "b"])
KINDS = st.sampled_from(CHILDREN)
FATES = st.sampled_from([Fate.WELL] * 6 + [Fate.LOST, Fate.LATE, Fate.OVERLOADED])
SETTLE_ROUNDS = 80


class Queue:
    """Records which objects need a reconcile, now or later."""

    def __init__(self) -> None:
        self.due: set[Key] = set()
        self.later: set[Key] = set()

    def add(self, key: Key) -> None:
        self.due.add(key)

    def add_all(self, keys: Iterable[Key]) -> None:
        self.due |= set(keys)


@dataclass
class Listing:
    """A running list, with the state at the time of its response."""

    number: int
    items: list[Json]
    version: int
    told: int


class Lagging(RuleBasedStateMachine):
    """Two objects, a server whose responses may be late or lost, watches that lag, and kopf, which keeps no order
    between objects, misses deletions at a relist, and swallows errors of handlers.
    """

    @initialize(replicas=st.integers(1, 3))
    def begin(self, replicas: int) -> None:
        self.server = Server()
        self.now = 0.0
        self.is_late = False
        self.ask_for("a", replicas, "1Gi")
        self.start()

    def start(self) -> None:
        """Start a new process, which lists everything before its first reconcile."""
        self.stores, self.queue = Stores(None), Queue()
        self.expectations, self.nodes = Expectations(lambda: self.now), NodeRegistry()
        self.api = ServerApi(self.server, self.fate, self.judge, read_fate=self.read_fate)
        self.heard = dict.fromkeys(self.server.objects, 0)
        self.undelivered: dict[str, list[Json]] = {}
        self.seen: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        self.breaks = False
        self.listing: dict[str, Listing] = {}
        self.data: st.DataObject | None = None
        self.read: Entry[Object] | None = None
        self.reconciler = reconciler_of(
            self.api,
            self.stores,
            self.expectations,
            self.nodes,
            now=lambda: self.now,
            wake=lambda key: self.queue.add(key.of(KIND)),
        )
        route_changes(self.stores, self.queue, self.expectations, self.nodes)  # type: ignore[arg-type]
        self.stores.models.listen(self.break_down)
        self.kopf_lists()
        for kind in self.server.objects:
            self.begin_a_list(kind)
            self.end_a_list(kind)

    def break_down(self, _: object) -> None:
        """Fail like a defect of the operator, if the test says so."""
        if self.breaks:
            raise RuntimeError("a bug")

    def part(self, kind: str) -> Part[Any]:
        (store,) = [store for store in self.stores.all() if store.resource.kind == kind]
        return store.part_of(NAMESPACE)

    def fate(self) -> Fate:
        """Draw the fate of a request, and let other events happen meanwhile."""
        if self.data is None:
            return Fate.WELL
        for kind in self.data.draw(st.lists(KINDS, max_size=2)):
            self.tell(kind, 3)
        if self.data.draw(st.booleans()):
            self.kopf_receives(2)
            self.deliver(self.data, breaks=False)
        return self.data.draw(FATES)

    def read_fate(self) -> Fate:
        return Fate.WELL if self.data is None else self.data.draw(st.sampled_from([Fate.WELL] * 3 + [Fate.LOST]))

    def judge(self, pod: Object) -> Callable[[], None]:
        """Return a check to run when a pod is created: was one missing, by the server's state and the spec that was
        read?

        A pod that is created late may come after the spec has changed, or after its second try was created and deleted.
        Nothing could have prevented that; the end of the test shows that the pod is deleted.
        """
        sent, name = self.read, pod["metadata"]["name"]
        assert sent is not None

        def judge() -> None:
            stale = self.read is None or self.read.uid != sent.uid or generation_of(self.read) != generation_of(sent)
            if self.is_late and (stale or self.was_made(name)):
                return
            live = [p for p in self.server.owned("Pod", sent.uid) if is_live(p)]
            same = [p for p in live if p["metadata"]["labels"][HASH_LABEL] == pod["metadata"]["labels"][HASH_LABEL]]
            spec = read_spec(sent.value)
            assert len(same) < spec.replicas, f"{len(same)} pods of {spec.replicas} are there, and one more is made"
            assert len(live) < spec.replicas + spec.rollout.surge(spec.replicas)

        return judge

    def was_made(self, pod: str) -> bool:
        """Return whether the server ever had a pod of this name."""
        return any(event["object"]["metadata"]["name"] == pod for event in self.server.told["Pod"])

    @rule(name=NAMES, replicas=st.integers(0, 3), memory=st.sampled_from(["1Gi", "2Gi"]))
    def ask_for(self, name: str, replicas: int, memory: str) -> None:
        known = self.server.objects[KIND].get(name)
        body = model_body(name, replicas, memory)
        if known is not None:
            if known["spec"] == body["spec"]:
                return
            body["metadata"]["generation"] = known["metadata"]["generation"] + 1
            body["status"] = known.get("status", {})
        self.server.put(KIND, body)

    @precondition(lambda self: self.server.objects[KIND])
    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if name in self.server.objects[KIND]:
            self.server.remove(KIND, name)

    @precondition(lambda self: len(self.server.objects["Service"]) > len(self.server.objects[KIND]))
    @rule()
    def collect_garbage(self) -> None:
        uids = {item["metadata"]["uid"] for item in self.server.objects[KIND].values()}
        for kind in CHILDREN:
            for name, item in list(self.server.objects[kind].items()):
                if item["metadata"]["ownerReferences"][0]["uid"] not in uids:
                    self.server.remove(kind, name)

    @precondition(lambda self: self.server.objects["Pod"])
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """Let a kubelet change a pod."""
        self.proceed(data.draw(st.sampled_from(sorted(self.server.objects["Pod"]))))

    @precondition(lambda self: self.server.objects["Pod"])
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.server.objects["Pod"])))
        status = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
        self.server.change("Pod", name, lambda pod: pod.update(status=status))

    @precondition(lambda self: self.queue.due | self.queue.later)
    @rule(data=st.data(), again=st.integers(1, 3))
    def make_passes(self, data: st.DataObject, again: int) -> None:
        """Reconcile objects that are due, or whose timer may have fired. Events come in between."""
        self.data = data
        for _ in range(again):
            if due := sorted(self.queue.due | self.queue.later):
                self.pass_over(data.draw(st.sampled_from(due)))
        self.data = None

    @precondition(lambda self: any(len(told) > self.heard[kind] for kind, told in self.server.told.items()))
    @rule(kind=KINDS, count=st.integers(1, 4))
    def tell(self, kind: str, count: int) -> None:
        """Deliver some events of a watch."""
        part = self.part(kind)
        if part.outdated or kind in self.listing:
            return  # Its reflector lists instead.
        for event in self.server.told[kind][self.heard[kind] :][:count]:
            self.heard[kind] += 1
            part.take(event)

    @rule()
    def kopf_lists(self) -> None:
        """Let kopf list after its watch has expired. The list does not report deletions since its last event."""
        for item in self.server.objects[KIND].values():
            self.undelivered.setdefault(item["metadata"]["uid"], []).append({"type": None, "object": item})
        self.heard[KIND] = len(self.server.told[KIND])
        self.part(KIND).doubt()

    @rule(count=st.integers(1, 4))
    def kopf_receives(self, count: int) -> None:
        """Deliver some events to kopf's watch."""
        for event in self.server.told[KIND][self.heard[KIND] :][:count]:
            self.heard[KIND] += 1
            self.undelivered.setdefault(event["object"]["metadata"]["uid"], []).append(event)

    @precondition(lambda self: self.undelivered)
    @rule(data=st.data(), breaks=st.sampled_from([False, False, True]))
    def deliver(self, data: st.DataObject, breaks: bool) -> None:
        """Let kopf call the handler for one object. Its events come in order, but not in order with other objects'."""
        if not self.undelivered:
            return
        uid = data.draw(st.sampled_from(sorted(self.undelivered)))
        event = self.undelivered[uid].pop(0)
        if not self.undelivered[uid]:
            del self.undelivered[uid]
        self.breaks = breaks
        merge_event(self.stores.models, self.queue, event)  # type: ignore[arg-type]
        self.breaks = False

    @rule(kind=st.sampled_from([KIND, *CHILDREN]))
    def list_anew(self, kind: str) -> None:
        """Start a list, because the watch has expired or is doubted, or end one that has started."""
        if kind in self.listing:
            self.end_a_list(kind)
        else:
            self.begin_a_list(kind)

    def begin_a_list(self, kind: str) -> None:
        if kind not in self.listing:
            items = list(self.server.objects[kind].values())
            told = len(self.server.told[kind])
            self.listing[kind] = Listing(self.part(kind).begin_list(), items, self.server.version, told)

    def end_a_list(self, kind: str) -> None:
        found = self.listing.pop(kind, None)
        if found is not None:
            part = self.part(kind)
            entries = {entry.key: entry for entry in map(part.resource.entry, found.items)}
            self.heard[kind] = self.heard[kind] if kind == KIND else found.told
            part.end_list(found.number, entries, found.version)

    @precondition(lambda self: self.server.late)
    @rule(data=st.data())
    def do_what_is_late(self, data: st.DataObject) -> None:
        write = self.server.late.pop(data.draw(st.integers(0, len(self.server.late) - 1)))
        self.is_late = True
        with suppress(ApiError):  # The response is not used.
            write()
        self.is_late = False

    @rule(seconds=st.sampled_from([1.0, PATIENCE_SECONDS]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        """Kill the process. Writes that are running at the server end, or not, before another process acts."""
        while self.server.late:
            self.do_what_is_late(data)
        self.start()

    @invariant()
    def caches_are_whole(self) -> None:
        if hasattr(self, "caches"):
            for store in self.stores.all():
                store.check_integrity()

    @invariant()
    def no_object_goes_back(self) -> None:
        """An entry is never older than the newest version of its name that was seen, or seen deleted."""
        if not hasattr(self, "caches"):
            return
        part = self.part(KIND)
        for name in ("a", "b"):
            seen = part.version_of(ObjectKey(NAMESPACE, name))
            entry = self.stores.models.get(ObjectKey(NAMESPACE, name))
            assert seen >= self.seen.get(name, 0)
            assert entry is None or entry.version >= self.newest.get(name, 0)
            self.seen[name] = seen
            self.newest[name] = max(self.newest.get(name, 0), entry.version if entry is not None else 0)

    def teardown(self) -> None:
        """Without further faults and without a resync, the wanted state is reached."""
        if not hasattr(self, "caches"):
            return
        self.server.late.clear()
        for _ in range(SETTLE_ROUNDS):
            self.collect_garbage()
            for kind in self.server.objects:
                self.end_a_list(kind)
                if self.part(kind).outdated:
                    self.begin_a_list(kind)
                    self.end_a_list(kind)
                if kind != KIND:
                    self.tell(kind, 1000)
            self.kopf_receives(1000)
            for event in [event for events in self.undelivered.values() for event in events]:
                merge_event(self.stores.models, self.queue, event)  # type: ignore[arg-type]
            self.undelivered.clear()
            moved = [name for name in list(self.server.objects["Pod"]) if self.proceed(name)]
            if not self.queue.due and not moved:
                if not self.queue.later:
                    break
                self.now += PATIENCE_SECONDS
                self.queue.due |= self.queue.later
            for key in sorted(self.queue.due):
                self.pass_over(key)
        for store in self.stores.all():
            shown = {entry.key.name: entry.version for entry in store}
            assert shown == {
                name: int(item["metadata"]["resourceVersion"])
                for name, item in self.server.objects[store.resource.kind].items()
            }
        for item in self.server.objects[KIND].values():
            self.assert_settled(item)
        before = len(self.api.asked)
        for item in self.server.objects[KIND].values():
            self.pass_over(Key(KIND, NAMESPACE, item["metadata"]["name"]))
        assert self.api.asked[before:] == [], "settled, and still it asks"

    def assert_settled(self, item: Json) -> None:
        uid, replicas = item["metadata"]["uid"], item["spec"]["replicas"]
        pods = self.server.owned("Pod", uid)
        memories = [p["spec"]["containers"][0]["resources"]["limits"]["memory"] for p in pods]
        assert memories == [item["spec"]["resources"]["memory"]] * replicas
        assert all(is_live(pod) for pod in pods)
        assert [s["metadata"]["name"] for s in self.server.owned("Service", uid)] == [item["metadata"]["name"]]
        revisions = sorted(self.server.owned("ControllerRevision", uid), key=lambda r: int(r["revision"]))
        assert len({r["revision"] for r in revisions}) == len(revisions)
        assert revisions[-1]["data"]["spec"]["resources"] == item["spec"]["resources"]
        assert {p["metadata"]["labels"][REVISION_LABEL] for p in pods} <= {
            revisions[-1]["metadata"]["labels"][REVISION_LABEL]
        }
        budgets = [b["spec"]["minAvailable"] for b in self.server.owned("PodDisruptionBudget", uid)]
        assert budgets == ([max(1, replicas - 1)] if replicas else [])
        assert item["status"]["observedGeneration"] == item["metadata"]["generation"]
        assert item["status"]["readyReplicas"] == replicas

    def pass_over(self, key: Key) -> None:
        self.queue.due.discard(key)
        self.queue.later.discard(key)
        self.read = self.stores.models.get(key.object)
        try:
            result = run(self.reconciler.reconcile(key.object))
        except ApiError:
            self.queue.later.add(key)
            return
        if result.again is not None:
            self.queue.later.add(key)

    def proceed(self, name: str) -> bool:
        """Place a pod and make it ready, or remove a deleted one; return whether there was anything to do."""
        pod = self.server.objects["Pod"][name]
        if "deletionTimestamp" in pod["metadata"]:
            self.server.remove("Pod", name)
            return True
        if not is_live(pod) or pod["status"].get("conditions"):
            return False
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        placed = bool(pod["spec"].get("nodeName"))

        def change(item: Json) -> None:
            item["spec"]["nodeName"] = "n1"
            if placed:
                item["status"] = ready

        self.server.change("Pod", name, change)
        return True


def generation_of(model: Entry[Object]) -> int:
    """Return the generation of the spec."""
    generation: int = model.value["metadata"]["generation"]
    return generation


def is_live(pod: Json) -> bool:
    """Return whether the pod counts as a replica."""
    return "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") != "Failed"


Lagging.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestLagging = Lagging.TestCase
