"""Runs the operator from start to stop: waits for the Lease, reads the cluster, and reconciles.

kopf (`handlers.py`) calls `start`, passes each event of a ModelDeployment or RuntimePool, and calls `stop`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import aiohttp
from aiohttp import web

from plimsoll_cluster.connection import Connection
from plimsoll_cluster.keys import Key
from plimsoll_cluster.kubernetes_source import follow, list_on_doubt
from plimsoll_cluster.served_names.policy import NamePolicy
from plimsoll_operator.build.disruption_budget import Budgets
from plimsoll_operator.build.host import read_key
from plimsoll_operator.canary.counts import RequestCounts
from plimsoll_operator.canary.decision import TotalsSource
from plimsoll_operator.canary.evidence import Totals
from plimsoll_operator.controller.event_routing import merge_event, route_changes
from plimsoll_operator.controller.model_reconciler import ModelReconciler
from plimsoll_operator.controller.name_recorder import NameRecorder
from plimsoll_operator.controller.object_metrics import OBJECTS
from plimsoll_operator.controller.options import Options
from plimsoll_operator.controller.work_queue import RESYNC_SECONDS, WORKERS, WorkQueue
from plimsoll_operator.kube.api import Api, WritesUnderWay
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.kube.expectations import Expectations
from plimsoll_operator.kube.health import serve_health
from plimsoll_operator.kube.leader_election import MARGIN, Lease, LeaseLostError
from plimsoll_operator.kube.leader_poller import LeaderPoller, health_client
from plimsoll_operator.kube.leader_registry import LeaderRegistry
from plimsoll_operator.kube.plan_executor import NotLeaderError
from plimsoll_operator.kube.prerequisites import await_prerequisites, may_see_namespaces, may_see_nodes
from plimsoll_operator.kube.result import ReconcileResult
from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.metrics import LEADER, LEADERLESS, UNFOLLOWED
from plimsoll_operator.planning.group_turns import GroupTurns
from plimsoll_operator.planning.nodes import NodeRegistry
from plimsoll_operator.planning.upgrade_queue import UpgradeQueue
from plimsoll_operator.pools.hosts.client import HostClient, host_session, host_url
from plimsoll_operator.pools.hosts.host_registry import HostPod
from plimsoll_operator.pools.pool_controller import PLACEMENT, PoolController
from plimsoll_operator.scaling.demand import Demand, RevisionDemand
from plimsoll_operator.scaling.gateways import GatewayRegistry
from plimsoll_operator.scaling.poller import DemandPoller, connect_to
from plimsoll_operator.scaling.scaler import Scaler
from plimsoll_operator.spec.identity import KIND, POOL_KIND, ObjectKey
from plimsoll_telemetry.tracer import Tracer


def request_totals_of(registry: GatewayRegistry, clock: Callable[[], float]) -> TotalsSource:
    """Return a function from a model to its request counts by gateway process and revision; it returns None while no
    gateway reports.
    """

    def totals(key: ObjectKey) -> Totals | None:
        answers = registry.believed(clock())
        return {answer.instance: _of_model(answer, key) for answer in answers} if answers else None

    return totals


def _of_model(answer: Demand, key: ObjectKey) -> dict[str, RequestCounts]:
    found = (m for m in answer.models if m.name == key.name and m.namespace == key.namespace)
    return {entry.revision: _seen(entry) for model in found for entry in model.revisions}


def _seen(entry: RevisionDemand) -> RequestCounts:
    """Return the counts of a revision. Requests without output or with incomplete output have failed."""
    return RequestCounts(entry.requests, entry.errors + entry.broken, entry.first_byte.count, entry.first_byte.buckets)


logger = logging.getLogger(__name__)

STALE_SECONDS = 5 * RESYNC_SECONDS
LEADERLESS_SECONDS = 60.0
"""Three times the duration of a Lease: after this time without a visible leader, there is none."""
ENDS = (LeaseLostError, NotLeaderError)
"""Errors that end the operator normally. Its pod restarts and becomes a standby."""
TROUBLED = 8
"""The operator is unhealthy after this many consecutive failures of one list or watch: about a minute for a reflector,
20 s for kopf, which retries more often.
"""
Follow = Callable[[Stores], Coroutine[Any, Any, None]]
"""Keeps all stores up to date forever, except for the events of ModelDeployments and RuntimePools, which come from
kopf.
"""


async def follow_cluster(connection: Connection, stores: Stores) -> None:
    """Keep the stores up to date forever: reflectors list and watch all kinds except ModelDeployments and RuntimePools.
    Those two come from kopf's events, and are listed here whenever the events may be incomplete.
    """
    async with asyncio.TaskGroup() as group:
        group.create_task(follow(connection, *stores.secondaries()))
        group.create_task(list_on_doubt(connection, *stores.primaries()))


class Controller:
    """One operator process, which is the leader or may become it.

    `on_end` is called when the work ends by itself, for example because the Lease is lost. `end`: the error that ended
    the start or the work, else None.
    """

    def __init__(
        self,
        options: Options,
        api: Api,
        follow: Follow,
        identities: tuple[str, str],
        writes_under_way: WritesUnderWay | None = None,
        on_end: Callable[[], None] = lambda: None,
        tracer: Tracer | None = None,
    ) -> None:
        """Set up the controller. `identities`: names in events and in the Lease. `writes_under_way`: those of `api`.
        `tracer`: None if traces are off.
        """
        self._tracer = tracer
        self._options = options
        self._api = api
        self._follow = follow
        self._instance, identity = identities
        self._writes_under_way = writes_under_way or WritesUnderWay(MARGIN)
        self._on_end = on_end
        self._names = NameRegistry(NamePolicy(options.name_rules))
        self._nodes = NodeRegistry()
        self._host_key = read_key(options.host_keys) if options.host_keys is not None else None
        self._upgrades = UpgradeQueue(options.max_rolling)
        self._turns = GroupTurns(limited=options.group_turns)
        self._queue = WorkQueue(first=frozenset({PLACEMENT, POOL_KIND}))
        self._acting = False
        self._able = False
        self._work: asyncio.Task[None] | None = None
        self._health: web.AppRunner | None = None
        self.stores: Stores | None = None
        self.end: BaseException | None = None
        self.lease = Lease(api, options.lease, identity, deployment=options.deployment)
        LEADERLESS.set_function(lambda: self.lease.leaderless_seconds)

    def is_live(self) -> bool:
        """Return whether this is a standby, or a reconcile has succeeded recently."""
        return not self._acting or time.monotonic() - self._queue.last_success < STALE_SECONDS

    def trouble(self) -> str:
        """Return why no operator reconciles objects; "" while one does."""
        if not self._able:
            return "the operator's prerequisites have not been checked yet"
        seconds = self.lease.leaderless_seconds
        if seconds > LEADERLESS_SECONDS:
            return f"no operator has held the Lease {self._options.lease} for {seconds:.0f} s"
        if troubles := self.stores.troubles(TROUBLED) if self.stores is not None else []:
            return f"watches fail: {'; '.join(troubles)}"
        return "" if self.is_live() else "no reconcile has succeeded recently"

    async def start(self) -> None:
        """Serve probes, wait for the Lease, then start the work. kopf watches nothing before this returns.

        Raise PrerequisiteError or ListenError.
        """
        try:
            self._health = await serve_health(self._options.health_port, self.is_live, self.trouble)
            await self._until_leader()
        except BaseException as error:
            self.end = error if isinstance(error, Exception) else None
            await self.stop()
            raise

    async def _until_leader(self) -> None:
        options = self._options
        await await_prerequisites(self._api, options.namespaces, options.lease, options.name_record)
        self._able = True
        await self.lease.acquire()
        # Only lists that start after this point are sure to show the last leader's writes.
        self.stores = Stores(
            options.namespaces,
            with_nodes=await may_see_nodes(self._api),
            with_namespaces=await may_see_namespaces(self._api),
            name_record=options.name_record,
        )
        self._work = asyncio.create_task(self._act(self.stores))
        self._work.add_done_callback(self._note_end)

    async def stop(self) -> None:
        """End the work, wait for running writes, and release the Lease. May be called twice."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})
        await self._writes_under_way.wait()
        await self.lease.release()
        if self._health is not None:
            await self._health.cleanup()
            self._health = None

    def merge_event(self, kind: str, event: Mapping[str, Any]) -> None:
        """Apply an event of a ModelDeployment or a RuntimePool that kopf received."""
        stores = self.stores
        if stores is not None and stores.watches(event["object"]["metadata"]["namespace"]):
            merge_event(stores.of(kind), self._queue, event)

    async def _act(self, stores: Stores) -> None:
        """Reconcile forever. The error that ends this is raised in an exception group; those of `ENDS` are expected."""
        async with host_session() as session, health_client() as get_health, asyncio.TaskGroup() as group:
            group.create_task(self.lease.keep())
            UNFOLLOWED.set_function(lambda: len(stores.troubles()))
            OBJECTS.follow(stores)
            context = self._context(stores)
            route_changes(stores, self._queue, context.expectations, self._nodes)
            pools = self._make_pools(context, session)
            scaler, leaders = Scaler(wake=self._wake), LeaderRegistry()
            self._names.follow(stores.models, self._wake)
            if (record := self._options.name_record) is not None:
                group.create_task(NameRecorder(context, record, self._options.name_grace, self._wake).run())
            group.create_task(self._follow(stores))
            await stores.wait_synced()  # All claims to names, and all rollouts, are known before the first reconcile.
            for model in stores.models:
                self._upgrades.learn(model.value)
            self._queue.last_success = time.monotonic()
            self._acting = True
            LEADER.set(1)
            reconciler = ModelReconciler(
                context,
                self._upgrades,
                wake=self._wake,
                placed_models=pools.placer,
                turns=self._turns,
                scaler=scaler,
                totals_of=request_totals_of(scaler.registry, time.time),
                leaders=leaders,
            )

            async def make_pass(key: Key) -> ReconcileResult:
                return await (reconciler.reconcile(key.object) if key.kind == KIND else pools.reconcile(key))

            group.create_task(pools.run())
            group.create_task(scaler.run())
            group.create_task(LeaderPoller(leaders, get_health, self._wake).run())
            if (gateways := self._options.gateways) is not None:
                asked = connect_to(session, gateways.port)
                group.create_task(DemandPoller(scaler.registry, gateways, asked, clock=time.time).run())
            group.create_task(self._queue.resync())
            for _ in range(WORKERS):
                group.create_task(self._queue.work(make_pass))

    def _context(self, stores: Stores) -> ReconcileContext:
        return ReconcileContext(
            self._api,
            stores,
            Expectations(),
            self._options.image,
            self._names,
            self._nodes,
            self._instance,
            may_act=lambda: self.lease.held,
            budgets=Budgets(self._options.budgets, of_one=stores.nodes is not None),
            remote_code=self._options.remote_code,
            profiles=self._options.profiles,
            tracer=self._tracer,
        )

    def _make_pools(self, context: ReconcileContext, session: aiohttp.ClientSession) -> PoolController:
        host_key = self._host_key

        def connect_to(pod: HostPod) -> HostClient:
            token = host_key.token(pod.pool) if host_key is not None else ""
            return HostClient(session, host_url(pod.address), token, self._writes_under_way)

        return PoolController(
            context, UpgradeQueue(self._options.max_rolling), host_key=host_key, connect=connect_to, queue=self._queue
        )

    def _wake(self, key: ObjectKey) -> None:
        self._queue.add(key.of(KIND))

    def _note_end(self, work: asyncio.Task[None]) -> None:
        if not work.cancelled():
            self.end = work.exception()
            self._on_end()


def controller_of(
    options: Options,
    connection: Connection,
    on_end: Callable[[], None],
    identities: tuple[str, str] | None = None,
    tracer: Tracer | None = None,
) -> Controller:
    """Return a controller for the cluster of a connection. `tracer`: None if traces are off."""
    writes_under_way = WritesUnderWay(MARGIN)
    api = Api(connection, writes_under_way)
    return Controller(
        options, api, partial(follow_cluster, connection), identities or _identities(), writes_under_way, on_end, tracer
    )


def _identities() -> tuple[str, str]:
    """Return the names in events and in the Lease. A pod uses its own name, so a restarted container keeps its
    Lease.
    """
    pod = os.environ.get("POD_NAME")
    host = socket.gethostname()
    return (pod, pod) if pod else (host, f"{host}_{uuid.uuid4().hex[:8]}")
