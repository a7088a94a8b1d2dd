"""Connects everything about pools: which change notifies which part, and which reconciles follow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from plimsoll_cluster.keys import Key
from plimsoll_cluster.store import Change
from plimsoll_operator.build.host import HostKey
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.kube.result import ReconcileResult
from plimsoll_operator.placement.planner import plan
from plimsoll_operator.planning.upgrade_queue import UpgradeQueue
from plimsoll_operator.pools.host_executor import Connect
from plimsoll_operator.pools.hosts.host_registry import HostRegistry, Known
from plimsoll_operator.pools.hosts.model_host_writer import WRITES_A_SECOND, HostWriter
from plimsoll_operator.pools.hosts.poller import Poller
from plimsoll_operator.pools.hosts.rate_limiter import RateLimiter
from plimsoll_operator.pools.hosts.report import Decision, Report
from plimsoll_operator.pools.placement_traces import PlacementTraces
from plimsoll_operator.pools.placer import Placer, Planner
from plimsoll_operator.pools.pool_reconciler import PoolListeners, PoolReconciler
from plimsoll_operator.pools.source_tokens import SourceTokens
from plimsoll_operator.pools.target_models import PoolMembers
from plimsoll_operator.spec.identity import KIND, POOL_KIND, Object, ObjectKey
from plimsoll_operator.status.reasons import Reason

PLACEMENT = "Placement"
"""The kind in queue keys for planning the models of a pool. Keys of kind RuntimePool are for reconciling its pods."""
DEBOUNCE_SECONDS = 0.2
EVENTS = {"Woken": Reason.WOKEN, "Asleep": Reason.ASLEEP, "Evicted": Reason.EVICTED, "Refused": Reason.REFUSED}
"""Decisions of hosts that become events, with their reasons."""


class Queue(Protocol):
    """The work queue."""

    def add(self, key: Key) -> None:
        """Queue the object with this key for a reconcile as soon as possible."""

    def add_within(self, key: Key, seconds: float) -> None:
        """Queue the object with this key for a reconcile in at most this many seconds."""


class PoolController:
    """The parts for pools, and the listeners that connect them."""

    def __init__(
        self,
        context: ReconcileContext,
        upgrades: UpgradeQueue,
        *,
        host_key: HostKey | None,
        connect: Connect,
        queue: Queue,
        planner: Planner = plan,
        rate_limiter: RateLimiter | None = None,
        poller: type[Poller] = Poller,
    ) -> None:
        stores = context.stores
        self._queue = queue
        self._stores = stores
        self._refused: dict[str, str] = {}
        self.members = PoolMembers()
        self.registry = HostRegistry(self._host_changed)
        self.poller = poller(self.registry, clock=lambda: context.clock().timestamp())
        self.placer = self._make_placer(context, host_key, connect, planner)
        self.writer = HostWriter(
            context.api,
            stores,
            self.registry,
            rate_limiter or RateLimiter(WRITES_A_SECOND),
            may_act=context.may_act,
            draining=self._is_draining,
            admits=self.placer.admits,
            clock=context.clock,
        )
        self.reconciler = PoolReconciler(
            context,
            upgrades,
            host_key=host_key,
            registry=self.registry,
            poller=self.poller,
            connect=connect,
            listeners=PoolListeners(
                replan=self._replan,
                note=self.writer.note,
                moved=self._wake_models,
                wake=lambda key: queue.add(key.of(POOL_KIND)),
            ),
        )
        stores.models.listen(self._models_changed)
        stores.pools.listen(self._pools_changed)
        if stores.namespaces is not None:
            stores.namespaces.listen(self._namespaces_changed)

    def _make_placer(
        self, context: ReconcileContext, host_key: HostKey | None, connect: Connect, planner: Planner
    ) -> Placer:
        mark = host_key.mark if host_key is not None else _no_mark
        return Placer(
            context.stores,
            self.registry,
            self.members,
            context.names,
            context.nodes,
            SourceTokens(context.api.secret, mark, lambda: context.clock().timestamp()),
            planner,
            connect,
            may_act=context.may_act,
            wake=self._wake_model,
            note=self._note_host,
            replan=self._replan,
            draining=self._is_draining,
            clock=context.clock,
            profiles=context.profiles,
            traces=None if context.tracer is None else PlacementTraces(context.tracer),
        )

    async def reconcile(self, key: Key) -> ReconcileResult:
        """Plan and send a pool's placements for a key of kind `PLACEMENT`, else reconcile its pods."""
        if key.kind == PLACEMENT:
            return await self.placer.reconcile(key.object)
        result = await self.reconciler.reconcile(key.object)
        if result.gone:
            self._replan(key.object)
        return result

    async def run(self) -> None:
        """Write ModelHosts forever."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.writer.run())
                group.create_task(self.writer.beat())
        finally:
            await self.poller.close()

    def _models_changed(self, changes: Sequence[Change[Object]]) -> None:
        for change in changes:
            after = change.after
            if after is None:
                concerned = self.members.forget(change.key)
            else:
                concerned = self.members.note(after.value)
                if not _asks_otherwise(change):
                    continue
            if self.members.pool_of(change.key) is None:
                self.placer.forget(change.key)
            for pool in concerned:
                self._replan(pool)

    def _pools_changed(self, changes: Sequence[Change[Object]]) -> None:
        """Plan changed pools, because they may accept other models."""
        for change in changes:
            if _asks_otherwise(change):
                self._replan(change.key)

    def _namespaces_changed(self, changes: Sequence[Change[Mapping[str, str]]]) -> None:
        """Plan the pools with models of a namespace whose labels have changed."""
        for change in changes:
            before, after = change.before, change.after
            if before is None or after is None or before.value != after.value:
                for pool in self.members.of_namespace(change.key.name):
                    self._replan(pool)

    def _host_changed(self, known: Known, before: Report | None) -> None:
        """Handle a host's new report, or trouble with its reports. Queue its ModelHost for a write; if a state, an
        error or a decision has changed, also plan the pool and wake the models concerned.
        """
        self.writer.note(known.pod.uid)
        self._note_refusal(known)
        after = known.report
        if before is not None and after is not None and before.version == after.version:
            if known.trouble:
                self._replan(known.pod.pool)
            return
        self._replan(known.pod.pool)
        self._queue.add(known.pod.pool.of(POOL_KIND))
        told = {entry.key: _shown(entry) for entry in before.models} if before is not None else {}
        now = {entry.key: _shown(entry) for entry in after.models} if after is not None else {}
        for model in told.keys() | now.keys():
            if told.get(model) != now.get(model):
                self._wake_model(model)
        if after is not None:
            self._tell_decisions(known, before, after)

    def _note_refusal(self, known: Known) -> None:
        """If a host's report is newly rejected, or accepted again, queue its pool and the pool's models, whose statuses
        show it.
        """
        uid, pool, why = known.pod.uid, known.pod.pool, known.trouble if known.refused else ""
        if self._refused.get(uid, "") == why:
            return
        self._refused = {host: words for host, words in self._refused.items() if self.registry.get(host) is not None}
        self._refused[uid] = why
        self._replan(pool)
        self._queue.add(pool.of(POOL_KIND))
        self._wake_models(self.members.of(pool))

    def _tell_decisions(self, known: Known, before: Report | None, report: Report) -> None:
        """Queue an event for each new decision. For a host's first report, its ModelHost shows which have had
        events.
        """
        instance, told = (before.instance, before.sequence) if before is not None else self._stored(known)
        least = told if instance == report.instance else 0
        for decision in report.decisions:
            here = self.members.pool_of(decision.key) == known.pod.pool  # A host could name any model.
            if here and decision.sequence > least and decision.action in EVENTS:
                self.placer.tell(decision.key, EVENTS[decision.action], _words(known, decision))

    def _stored(self, known: Known) -> tuple[str, int]:
        entry = self._stores.hosts.get(known.pod.key)
        status: Any = (entry.value.get("status") or {}) if entry is not None else {}
        return status.get("instance", ""), status.get("sequence", 0)

    def _note_host(self, uid: str) -> None:
        self.writer.note(uid)

    def _is_draining(self, uid: str) -> bool:
        return self.reconciler.is_draining(uid)

    def _replan(self, pool: ObjectKey) -> None:
        self._queue.add_within(pool.of(PLACEMENT), DEBOUNCE_SECONDS)

    def _wake_models(self, models: Iterable[ObjectKey]) -> None:
        for model in models:
            self._wake_model(model)

    def _wake_model(self, model: ObjectKey) -> None:
        self._queue.add(model.of(KIND))


def _no_mark(secret: str) -> str:
    """Return "": without the key nothing is placed, so no marks are needed."""
    return ""


def _asks_otherwise(change: Change[Object]) -> bool:
    before, after = change.before, change.after
    if before is None or after is None:
        return True
    return (before.uid, before.deleting, _wanted(before.value)) != (after.uid, after.deleting, _wanted(after.value))


def _wanted(item: Object) -> tuple[Any, Any]:
    """Return the parts of a ModelDeployment or RuntimePool whose change requires a plan: the spec, and the scaler's
    wanted replicas.
    """
    return item["spec"], (item.get("status") or {}).get("desiredReplicas")


def _shown(entry: Any) -> tuple[Any, ...]:
    """Return the fields of a model's entry in a host's report that the model's status shows."""
    return (entry.state, entry.revision, entry.since, entry.why, entry.error, entry.device)


def _words(known: Known, decision: Decision) -> str:
    return f"{known.pod.name}: {decision.why}" if decision.why else f"on {known.pod.name}"
