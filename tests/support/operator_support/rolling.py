"""A model that rolls with canaries: its API server, kubelets, gateways, and an operator process.

Pods of a spec whose `maxModelLen` is BAD fail half of their requests, and those with STUCK never become ready.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from operator_support.objects import Json
from operator_support.passes import reconciler_of, run
from operator_support.server import NAMESPACE, Server, ServerApi, model_body

from plimsoll_operator.canary.counts import RequestCounts
from plimsoll_operator.canary.evidence import Totals
from plimsoll_operator.kube.expectations import Expectations
from plimsoll_operator.kube.leader_registry import LeaderRegistry
from plimsoll_operator.kube.result import ReconcileResult
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.planning.nodes import NodeRegistry
from plimsoll_operator.spec.identity import KIND, REVISION_LABEL, ObjectKey

KEY = ObjectKey(NAMESPACE, "m")
BAD, STUCK = 2000, 3000
READY: Json = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
REQUESTS = 200
"""Requests of each turn, over all pods."""
STEPS = [{"weight": 10, "pauseSeconds": 60}, {"weight": 50, "pauseSeconds": 60}]


class Strict(ServerApi):
    """The requests of a process; calls the world's `strike` after each executed write."""

    def __init__(self, world: World) -> None:
        super().__init__(world.server)
        self._world = world

    def _write(self, what: str, write: Callable[[], Json]) -> Json:
        answer = super()._write(what, write)
        self._world.strike()
        return answer


class World:
    """What outlives a process. `counted`: the gateway's counts since its start, by revision."""

    def __init__(self) -> None:
        self.server = Server()
        self.now = 0.0
        self.strike: Callable[[], None] = lambda: None
        self.counted: dict[str, RequestCounts] = {}
        self.events: list[tuple[str, str, str]] = []

    def ask_for(self, length: int, replicas: int, canary: Json | None) -> None:
        """Write the model's spec; `length` stands for the spec."""
        body = model_body("m", replicas)
        body["spec"] |= {"runtime": {"maxModelLen": length}, "template": {"startupDeadlineSeconds": 60}}
        body["spec"]["rollout"] = {"progressDeadlineSeconds": 120} | ({"canary": canary} if canary else {})
        known = self.server.objects[KIND].get("m")
        if known is not None:
            body["metadata"]["generation"] = known["metadata"]["generation"] + (known["spec"] != body["spec"])
            body["status"] = known.get("status", {})
        self.server.put(KIND, body)

    @property
    def model(self) -> Json:
        return self.server.objects[KIND]["m"]

    @property
    def pods(self) -> list[Json]:
        return list(self.server.objects["Pod"].values())

    @property
    def canary(self) -> Json:
        found: Json = self.model.get("status", {}).get("canary") or {}
        return found

    def proceed(self) -> None:
        """Let kubelets act."""
        for name, pod in list(self.server.objects["Pod"].items()):
            if "deletionTimestamp" in pod["metadata"]:
                self.server.remove("Pod", name)
            elif not pod["spec"].get("nodeName"):
                self.server.change("Pod", name, lambda item: item["spec"].update(nodeName="n1"))
            elif not pod["status"].get("conditions") and f"{STUCK}" not in _arguments(pod):
                self.server.change("Pod", name, lambda item: item.update(status=READY))

    def serve(self) -> None:
        """Let gateways route requests by the status, and count them."""
        ready = [pod for pod in self.pods if is_ready(pod)]
        weight, revision = self.canary.get("weight", 0), self.canary.get("revision")
        canary = [pod for pod in ready if label(pod) == revision]
        others = [pod for pod in ready if label(pod) != revision]
        share = (weight if others else 100) if canary else 0
        for pods, per_cent in ((canary, share), (others, 100 - share)):
            for pod in pods if per_cent else ():
                count = max(1, REQUESTS * per_cent // 100 // len(pods))
                failed = count // 2 if f"{BAD}" in _arguments(pod) else 0
                seen = RequestCounts(count, failed, count, ((0.5, count), (1.0, count)))
                self.counted[label(pod)] = self.counted.get(label(pod), RequestCounts()) + seen

    def totals(self, _: ObjectKey) -> Totals:
        return {"g": dict(self.counted)}


class Process:
    """An operator process. It lists everything before each reconcile, so that it sees all writes."""

    def __init__(self, world: World, *, image: str = "runtime:1", upgrades: int = 99) -> None:
        self.world = world
        self.api = Strict(world)
        self.api.events = world.events
        self.stores, self.leaders = Stores(None), LeaderRegistry()
        self.reconciler = reconciler_of(
            self.api,
            self.stores,
            Expectations(lambda: world.now),
            NodeRegistry(),
            now=lambda: world.now,
            totals_of=world.totals,
            image=image,
            upgrades=upgrades,
            leaders=self.leaders,
        )

    def one_pass(self) -> bool:
        """Reconcile, and return whether anything changed."""
        before = self.world.server.version
        result = self.result()
        changed = self.world.server.version != before
        assert changed or result.again is None or result.again > timedelta(0), "endless reconciles without a change"
        return changed

    def result(self) -> ReconcileResult:
        """Return the result of a reconcile."""
        for store in self.stores.all():
            part, number = store.part_of(NAMESPACE), store.part_of(NAMESPACE).begin_list()
            found = map(store.resource.entry, self.world.server.objects.get(store.resource.kind, {}).values())
            part.end_list(number, {entry.key: entry for entry in found}, self.world.server.version)
        result: ReconcileResult = run(self.reconciler.reconcile(KEY))
        assert not result.put_off
        return result


def label(pod: Json) -> str:
    """Return the revision of a pod."""
    found: str = pod["metadata"]["labels"][REVISION_LABEL]
    return found


def is_ready(pod: Json) -> bool:
    """Return whether a pod serves."""
    return bool(pod["status"].get("conditions")) and "deletionTimestamp" not in pod["metadata"]


def is_live(pod: Json) -> bool:
    """Return whether a pod counts as a replica."""
    return "deletionTimestamp" not in pod["metadata"]


def _arguments(pod: Json) -> list[Any]:
    found: list[Any] = pod["spec"]["containers"][0]["args"]
    return found
