"""Reconciles a RuntimePool: its pods, the polling of its hosts, and its status."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from plimsoll_operator.build.disruption_budget import build_budget
from plimsoll_operator.build.host import HostKey, build_host
from plimsoll_operator.build.pod_revision import fits, revision
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.kube.plan_executor import PlanExecutor
from plimsoll_operator.kube.result import PATIENCE, ReconcileResult, retry_in, unless_namespace_ends
from plimsoll_operator.kube.writer import PodFactory, Writer
from plimsoll_operator.planning.actions import Action, CreatePod
from plimsoll_operator.planning.plan import plan
from plimsoll_operator.planning.pod_view import PodView
from plimsoll_operator.planning.pods import Observed, Pod, ServiceState, lost_in, observe_pods
from plimsoll_operator.planning.units import units_of
from plimsoll_operator.planning.upgrade_queue import UpgradeQueue, view_with_upgrades
from plimsoll_operator.pools.drain import Drained, drain
from plimsoll_operator.pools.host_executor import Connect
from plimsoll_operator.pools.hosts.host_registry import HostPod, HostRegistry
from plimsoll_operator.pools.hosts.model_host import DRAINING, is_draining
from plimsoll_operator.pools.hosts.poller import Poller
from plimsoll_operator.pools.pool_status import describe_pool
from plimsoll_operator.spec.identity import POOL_KIND, Object, ObjectKey
from plimsoll_operator.spec.quantity import byte_count
from plimsoll_operator.spec.runtime_pool import PoolSpec, read_pool
from plimsoll_operator.spec.template import SpecError
from plimsoll_operator.status.conditions import RECONCILING, STALLED
from plimsoll_operator.status.status import Rejections, describe_invalid

NO_KEY = "the operator has no key for hosts' tokens: start it with --host-keys, as the chart does"


@dataclass(frozen=True, slots=True)
class PoolListeners:
    """Functions to call with what a reconcile of a pool finds."""

    replan: Callable[[ObjectKey], None]
    """Called with a pool whose hosts have changed or drain."""
    note: Callable[[str], None]
    """Called with the uid of a pod whose ModelHost may have changed."""
    moved: Callable[[Iterable[ObjectKey]], None]
    """Called with models whose hosts became ready or unready."""
    wake: Callable[[ObjectKey], None]
    """Called with a pool that needs a reconcile because of another one."""


class PoolReconciler:
    """Reconciles RuntimePools. `connect` makes the client of each running pod, which `poller` then polls."""

    def __init__(
        self,
        context: ReconcileContext,
        upgrades: UpgradeQueue,
        *,
        host_key: HostKey | None,
        registry: HostRegistry,
        poller: Poller,
        connect: Connect,
        listeners: PoolListeners,
    ) -> None:
        self._stores = context.stores
        self._expectations = context.expectations
        self._image = context.image
        self._profiles = context.profiles
        self._nodes = context.nodes
        self._budgets = context.budgets
        self._clock = context.clock
        self._upgrades = upgrades
        self._host_key = host_key
        self._registry = registry
        self._poller = poller
        self._connect = connect
        self._listeners = listeners
        self._draining: dict[ObjectKey, dict[str, datetime]] = {}
        self._usable: dict[ObjectKey, frozenset[tuple[Any, ...]]] = {}
        self._writer = Writer(context, POOL_KIND)
        self._executor = PlanExecutor(context, self._writer)

    def is_draining(self, uid: str) -> bool:
        """Return whether the pod with this uid will be deleted once it has no models."""
        return any(uid in uids for uids in self._draining.values())

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        """Do one reconcile. Raise ApiError or NotLeaderError."""
        await self._writer.look(key)
        if not self._expectations.may_pass(key.of(POOL_KIND)):
            return ReconcileResult(again=PATIENCE, put_off=True)
        pool = self._stores.pools.get(key)
        if pool is None:
            self._forget(key)
            return ReconcileResult(gone=True)
        pods = self._stores.pods_of(pool)
        if pool.deleting:
            self._wake_all(self._upgrades.end(key))
            return ReconcileResult()
        try:
            spec = read_pool(pool.value, self._profiles)
        except SpecError as error:
            return await self._report_invalid(pool.value, pods, error)
        found = self._hear(spec, pods)  # Running pods are polled even if new pods cannot be built.
        try:
            self._image.of(spec)
            if self._host_key is None:
                raise SpecError(NO_KEY)
        except SpecError as error:
            return await self._report_invalid(pool.value, pods, error)
        return await unless_namespace_ends(key, self._bring_closer(pool.value, spec, self._host_key, found))

    async def _report_invalid(self, item: Object, pods: Sequence[Pod], error: SpecError) -> ReconcileResult:
        found = observe_pods(pods, self._clock(), self._nodes.known)
        await self._executor.write_status(item, *describe_invalid(item, units_of(found), str(error)))
        return ReconcileResult()

    def _hear(self, spec: PoolSpec, pods: Sequence[Pod]) -> Sequence[Pod]:
        """Make sure that the hosts of these pods are polled; return the pods as observed now."""
        self._follow(spec, pods)
        found = observe_pods(pods, self._clock(), self._nodes.known)
        self._note_readiness(spec.key, found)
        self._nodes.note_use(spec.key.of(POOL_KIND), (p.node for p in found if p.node))
        return found

    async def _bring_closer(
        self, item: Object, spec: PoolSpec, host_key: HostKey, pods: Sequence[Pod]
    ) -> ReconcileResult:
        now = self._clock()
        found = tuple(replace(pod, worth=self._worth(pod)) for pod in pods)
        seen = self._view(spec, host_key, Observed(found, ServiceState.OURS, now))
        planned = plan(seen)
        drained = self._drain(spec, seen, planned.actions)

        def pod(suffix: str, action: CreatePod) -> Object:
            return build_host(spec, self._image, host_key, suffix, action.group)

        factory = PodFactory(revision(spec, self._image, host_key.fingerprint), pod)
        rejections, failure = await self._executor.apply(item, spec.key, drained.actions, factory)
        budget = build_budget(spec, self._budgets)
        late = await self._executor.keep_budget(item, spec.owner, budget, seen.units)
        error = failure or late
        if drained.actions and rejections == Rejections() and error is None:
            return ReconcileResult(again=PATIENCE)
        before = (item.get("status") or {}).get("conditions") or []
        hosts = self._registry.of(spec.key)
        models = {model for known in hosts for model in known.entries}
        fields, conditions = describe_pool(seen, rejections, before, hosts, len(models))
        await self._executor.write_status(item, fields, conditions)
        if any(c.type == STALLED for c in conditions):
            self._wake_all(self._upgrades.stall(spec.key))
        if error is not None:
            raise error
        stalls_in = seen.stalls_in(before) if any(c.type == RECONCILING for c in conditions) else None
        waits = (planned.wait, stalls_in, drained.wait, retry_in(rejections, before, now), lost_in(found, now))
        return ReconcileResult(again=min((wait for wait in waits if wait is not None), default=None))

    def _view(self, spec: PoolSpec, host_key: HostKey, observed: Observed) -> PodView[PoolSpec]:
        seen, next_ones = view_with_upgrades(
            spec, fits(spec, self._image, host_key.fingerprint), observed, self._upgrades
        )
        self._wake_all(next_ones)
        return seen

    def _follow(self, spec: PoolSpec, pods: Sequence[Pod]) -> None:
        """Keep in the registry, and poll, the pool's pods that are not dead, and no others."""
        memory = byte_count(spec.memory) if spec.memory and spec.accelerator is None else 0
        running = [pod for pod in pods if not pod.dead]
        before = {known.pod.uid for known in self._registry.of(spec.key)}
        hosts = [HostPod(spec.key, pod.name, pod.uid, pod.node, pod.address, memory) for pod in running]
        self._registry.keep(spec.key, hosts)
        for uid in before - {host.uid for host in hosts}:
            self._poller.leave(uid)
        for host in hosts:
            if host.address:
                self._poller.follow(host.uid, host.address, self._connect(host))
            self._listeners.note(host.uid)
        if before != {host.uid for host in hosts}:
            self._listeners.replan(spec.key)

    def _note_readiness(self, key: ObjectKey, pods: Sequence[Pod]) -> None:
        """Plan the pool and wake its models if the readiness of a host has changed."""
        usable = frozenset((pod.uid, pod.ready, pod.leaving, pod.stopping, pod.failure is None) for pod in pods)
        if self._usable.get(key, frozenset()) == usable:
            return
        self._usable[key] = usable
        self._listeners.replan(key)
        for known in self._registry.of(key):
            self._listeners.moved(known.entries)

    def _drain(self, spec: PoolSpec, seen: PodView[PoolSpec], actions: Sequence[Action]) -> Drained:
        """Defer deletions of pods with models, and notify the planner and the ModelHosts of draining pods."""
        before = self._draining.get(spec.key, {})
        since = {**before, **self._draining_since(seen.observed.pods)}
        drained = drain(
            actions,
            seen.observed.pods,
            {pod.uid: self._models_on(pod) for pod in seen.observed.pods},
            since,
            _patience(spec),
            seen.observed.now,
        )
        # ModelHosts store this too; in memory it bounds a drain even if they cannot be written.
        self._draining[spec.key] = {uid: since.get(uid, seen.observed.now) for uid in drained.draining}
        for uid in drained.draining ^ before.keys():
            self._listeners.note(uid)
        if drained.draining != before.keys():
            self._listeners.replan(spec.key)
        return drained

    def _models_on(self, pod: Pod) -> int:
        """Return the number of a pod's models, from its report or else its ModelHost."""
        known = self._registry.get(pod.uid)
        if known is not None and known.report is not None:
            return len(known.entries)
        stored = self._stored(pod).get("models") or ()
        return sum(entry["state"] != "Absent" for entry in stored)

    def _worth(self, pod: Pod) -> float:
        """Return the summed retention value of a pod's models; -1 for one that drains already, so that it is deleted
        first.
        """
        if self.is_draining(pod.uid) or is_draining(self._stored(pod)):
            return -1.0
        known = self._registry.get(pod.uid)
        return sum(max(0.0, entry.value) for entry in known.report.models) if known and known.report else 0.0

    def _draining_since(self, pods: Sequence[Pod]) -> dict[str, datetime]:
        """Return since when pods drain, by uid, from their ModelHosts."""
        found = {}
        for pod in pods:
            for condition in self._stored(pod).get("conditions") or ():
                if condition["type"] == DRAINING and condition["status"] == "True":
                    found[pod.uid] = datetime.fromisoformat(condition["lastTransitionTime"])
        return found

    def _stored(self, pod: Pod) -> Object:
        """Return the status of the pod's ModelHost, which outlives this process."""
        found = self._stores.hosts.owned(self._namespace(pod), pod.uid)
        return next((entry.value.get("status") or {} for entry in found), {})

    def _namespace(self, pod: Pod) -> str:
        known = self._registry.get(pod.uid)
        return known.pod.pool.namespace if known is not None else ""

    def _forget(self, key: ObjectKey) -> None:
        for known in self._registry.of(key):
            self._poller.leave(known.pod.uid)
        self._registry.keep(key, ())
        self._draining.pop(key, None)
        self._usable.pop(key, None)
        self._writer.forget(key)
        self._nodes.note_use(key.of(POOL_KIND), ())
        self._wake_all(self._upgrades.end(key))
        self._listeners.replan(key)

    def _wake_all(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            self._listeners.wake(key)


def _patience(spec: PoolSpec) -> timedelta:
    """Return how long the deletion of a pod with models may be deferred.

    It is zero for the only pod of a pool whose new pod is created after the old one is gone: its models have no other
    host.
    """
    alone = spec.rollout.takes_over and spec.replicas == 1
    return timedelta(seconds=0 if alone else spec.rollout.progress_seconds)
