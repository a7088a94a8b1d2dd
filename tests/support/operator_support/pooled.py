"""Operator processes over the server of server.py and hosts of stub_host.py, reconcile by reconcile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from operator_support.objects import EPOCH, Json
from operator_support.server import NAMESPACE, Server, ServerApi
from operator_support.stub_host import StubClient, StubHost

from plimsoll_cluster.keys import Key
from plimsoll_operator.build.host import HostKey
from plimsoll_operator.build.image import Image
from plimsoll_operator.controller.event_routing import route_changes
from plimsoll_operator.controller.model_reconciler import ModelReconciler
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.kube.expectations import Expectations
from plimsoll_operator.kube.result import ReconcileResult
from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.planning.nodes import NodeRegistry
from plimsoll_operator.planning.upgrade_queue import UpgradeQueue
from plimsoll_operator.pools.hosts.client import HostClient, HostError
from plimsoll_operator.pools.hosts.host_registry import HostPod
from plimsoll_operator.pools.hosts.poller import Poller
from plimsoll_operator.pools.hosts.rate_limiter import RateLimiter
from plimsoll_operator.pools.hosts.report import BadReportError
from plimsoll_operator.pools.pool_controller import PLACEMENT, PoolController
from plimsoll_operator.spec.identity import API_VERSION, HOST_KIND, KIND, POOL_KIND, ObjectKey

RUNTIME = Image("runtime:1")
HOST_KEY = HostKey(b"o" * 32)
QUIET_ROUNDS = 3
POOL = ObjectKey(NAMESPACE, "shared")


class Queue:
    """Records which reconciles are due."""

    def __init__(self) -> None:
        self.due: dict[Key, None] = {}

    def add(self, key: Key) -> None:
        self.due[key] = None

    def add_all(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.add(key)

    def add_within(self, key: Key, seconds: float) -> None:
        self.add(key)


class NoPoller(Poller):
    """Polls hosts only when the test says so."""

    def follow(self, uid: str, address: str, client: HostClient) -> None:
        return

    def leave(self, uid: str) -> None:
        return


class Unpaced(RateLimiter):
    """Does not limit rates, because time stands still."""

    def __init__(self) -> None:
        super().__init__(1.0)

    async def take(self) -> None:
        return


class World:
    """What outlives a process: the server, and hosts by their pods' names. Calls `strike` at each write.

    `starts` says which of the running pods are ready.
    """

    def __init__(self) -> None:
        self.server = Server("Namespace")
        self.hosts: dict[str, StubHost] = {}
        self.now = 0.0
        self.starts = 99
        self.strike: Callable[[], None] = lambda: None

    def ask_for_pool(self, replicas: int, **spec: Any) -> None:
        body = {"resources": {"memory": "2Gi"}, "memory": {"sleepers": "512Mi"}, "replicas": replicas, **spec}
        self._put(POOL_KIND, POOL.name, body)

    def ask_for(self, name: str, replicas: int = 1, namespace: str = NAMESPACE, **spec: Any) -> None:
        body = {"model": {"source": "demo://x"}, "replicas": replicas, "placement": {"pool": POOL.name}, **spec}
        self._put(KIND, name, {field: value for field, value in body.items() if value is not None}, namespace)

    def label(self, namespace: str, **labels: str) -> None:
        """Set the labels of a namespace, with its name's label."""
        everywhere = {"kubernetes.io/metadata.name": namespace}
        metadata = {"name": namespace, "namespace": "", "labels": everywhere | labels}
        self.server.put("Namespace", {"metadata": metadata})

    def delete(self, name: str) -> None:
        self.server.remove(KIND, name)

    def proceed(self) -> bool:
        """Let kubelets, hosts and the garbage collector act; return whether there was anything to do."""
        moved = False
        for name, pod in list(self.server.objects["Pod"].items()):
            moved |= self._proceed(name, pod)
        for name in [name for name in self.server.objects[HOST_KIND] if name not in self.server.objects["Pod"]]:
            self.server.remove(HOST_KIND, name)
            moved = True
        for host in self.hosts.values():
            before = host.sequence
            host.proceed()
            moved |= host.sequence != before
            host.check_integrity()
        return moved

    def _proceed(self, name: str, pod: Json) -> bool:
        if "deletionTimestamp" in pod["metadata"]:
            self.server.remove("Pod", name)
            self.hosts.pop(name, None)
            return True
        condition = {"type": "Ready", "status": str(len(self.hosts) < self.starts)}
        before = [{k: c[k] for k in ("type", "status")} for c in pod["status"].get("conditions", ())]
        if before and (name in self.hosts or condition in before):
            return False
        since = (EPOCH + timedelta(seconds=self.now)).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [{**condition, "lastTransitionTime": since}]
        status = {"phase": "Running", "conditions": conditions}
        if condition["status"] == "True":
            status["podIP"] = "198.18.0.9"
        self.server.change(
            "Pod", name, lambda item: item.update(spec={**item["spec"], "nodeName": f"node-of-{name}"}, status=status)
        )
        if condition["status"] == "True" and pod["metadata"]["labels"]["plimsoll.dev/role"] == "host":
            self.hosts[name] = StubHost(instance=f"of-{name}", slow=True, capacity=1024 * 2**20)
        return True

    def _put(self, kind: str, name: str, spec: Json, namespace: str = NAMESPACE) -> None:
        known = self.server.objects[kind].get(name)
        metadata: Json = {"name": name, "namespace": namespace}
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
        if known is not None:
            if known["spec"] == spec:
                return
            metadata["generation"] = known["metadata"]["generation"] + 1
            body["status"] = known.get("status", {})
        self.server.put(kind, body)


class Process:
    """One process. It lists everything at its start, and gets each later write immediately."""

    def __init__(
        self, world: World, *, with_namespaces: bool = True, image: Image = RUNTIME, upgrades: int = 9
    ) -> None:
        self.world = world
        self.stores, self.queue = Stores(None, with_namespaces=with_namespaces), Queue()
        self.expectations = Expectations(lambda: world.now)
        self.names, self.nodes = NameRegistry(), NodeRegistry()
        self.api = ServerApi(world.server, self._fate)
        context = ReconcileContext(
            self.api,
            self.stores,
            self.expectations,
            image,
            self.names,
            self.nodes,
            "test",
            may_act=lambda: True,
            clock=lambda: EPOCH + timedelta(seconds=world.now),
        )
        route_changes(self.stores, self.queue, self.expectations, self.nodes)  # type: ignore[arg-type]
        self.names.follow(self.stores.models, lambda key: self.queue.add(key.of(KIND)))
        self.pools = PoolController(
            context,
            UpgradeQueue(upgrades),
            host_key=HOST_KEY,
            connect=self._connect,
            queue=self.queue,
            rate_limiter=Unpaced(),
            poller=NoPoller,
        )
        self.reconciler = ModelReconciler(
            context,
            UpgradeQueue(upgrades),
            wake=lambda key: self.queue.add(key.of(KIND)),
            placed_models=self.pools.placer,
        )
        self._heard: dict[str, int] = {}
        self._list()

    async def one_pass(self, key: Key) -> ReconcileResult:
        """Reconcile one key; what is due soon is due immediately."""
        self.queue.due.pop(key, None)
        result = await (self.reconciler.reconcile(key.object) if key.kind == KIND else self.pools.reconcile(key))
        if result.put_off:
            self.queue.add(key)
        self.hear()
        return result

    async def poll(self) -> None:
        """Poll every host once."""
        for known in list(self.pools.registry):
            host = self.world.hosts.get(known.pod.name)
            if host is None:
                continue
            host.now = EPOCH.timestamp() + self.world.now
            try:
                self.pools.registry.take(known.pod.uid, host.report(), host.now)
            except (HostError, BadReportError) as error:
                self.pools.registry.fail(known.pod.uid, str(error), refused=isinstance(error, BadReportError))
        self.pools.registry.check_integrity()
        self.pools.members.check_integrity()

    async def write_hosts(self) -> None:
        """Write the ModelHosts."""
        for known in list(self.pools.registry):
            await self.pools.writer.write(known.pod.uid)
            self.hear()

    async def settle(self, rounds: int = 60) -> None:
        """Run until nothing changes for some rounds: a new process reads before it writes."""
        quiet = 0
        for _ in range(rounds):
            version = self.world.server.version
            sequences = [(name, host.sequence) for name, host in sorted(self.world.hosts.items())]
            self.queue.add(POOL.of(PLACEMENT))
            self.queue.add(POOL.of(POOL_KIND))
            await self.turn()
            moved = self.world.proceed()
            self.hear()
            after = [(name, host.sequence) for name, host in sorted(self.world.hosts.items())]
            same = not moved and (version, sequences) == (self.world.server.version, after)
            quiet = quiet + 1 if same else 0
            if quiet == QUIET_ROUNDS:
                return
            self.world.now += 1
        raise AssertionError(f"it does not come to rest: {self.api.asked[-20:]} {self.api.events[-10:]}")

    async def turn(self) -> None:
        """Poll hosts, write ModelHosts, and reconcile what is due."""
        await self.poll()
        await self.write_hosts()
        for key in sorted(self.queue.due):
            await self.one_pass(key)
        for key in sorted(key for key in self.queue.due if key.kind == KIND):
            await self.one_pass(key)

    def hear(self) -> None:
        """Deliver all writes to the watches."""
        for kind in self._kinds():
            told = self.world.server.told[kind]
            part = self._part(kind)
            for event in told[self._heard[kind] :]:
                part.take(event)
            self._heard[kind] = len(told)
            if part.outdated:
                self._list_one(kind)

    def _list(self) -> None:
        for kind in self._kinds():
            self._list_one(kind)

    def _kinds(self) -> list[str]:
        """Return the watched kinds."""
        watched = {store.resource.kind for store in self.stores.all()}
        return [kind for kind in self.world.server.objects if kind in watched]

    def _list_one(self, kind: str) -> None:
        part = self._part(kind)
        items = self.world.server.objects[kind].values()
        entries = {entry.key: entry for entry in map(part.resource.entry, items)}
        part.end_list(part.begin_list(), entries, self.world.server.version)
        self._heard[kind] = len(self.world.server.told[kind])

    def _part(self, kind: str) -> Any:
        return self.stores.of(kind).part_of(NAMESPACE)

    def _fate(self) -> Any:
        from operator_support.server import Fate

        self.world.strike()
        return Fate.WELL

    def _connect(self, pod: HostPod) -> HostClient:
        return StubClient(self.world.hosts[pod.name], self.world.strike)


def run(coroutine: Any) -> Any:
    """Run a coroutine in a new loop."""
    return asyncio.run(coroutine)
