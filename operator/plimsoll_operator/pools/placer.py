"""Places the models of a pool: collects its state, plans, and sends the plan's actions to hosts.

The process may be killed at any point. Accepted actions show in a host's report, and a repeated one has the same
operation ID and no second effect. Nothing is remembered that the next leader would miss.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec

from plimsoll_operator.kube.clock import utc_now
from plimsoll_operator.kube.result import A_MOMENT, ReconcileResult
from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.metrics import EVICTIONS, PLANNING, REFUSALS, REPORT_AGE
from plimsoll_operator.placement.records.action import ActionCause, Place
from plimsoll_operator.placement.records.host import Host
from plimsoll_operator.placement.records.model import Need
from plimsoll_operator.placement.records.plan import Plan, Refusal
from plimsoll_operator.placement.records.plan import Refused as RefusedBy
from plimsoll_operator.placement.records.pool import PoolState, Rules
from plimsoll_operator.planning.nodes import NodeRegistry
from plimsoll_operator.planning.pods import Pod, observe_pods
from plimsoll_operator.pools.host_executor import Connect, HostExecutor
from plimsoll_operator.pools.hosts.host_registry import HostRegistry, Known, refused_reports
from plimsoll_operator.pools.hosts.inventory import host_of, stored_needs
from plimsoll_operator.pools.hosts.model_host import is_draining
from plimsoll_operator.pools.model_placement import (
    OF_STATE,
    Copy,
    ModelPlacement,
    PlacementEvent,
    Problem,
    Where,
    shown,
)
from plimsoll_operator.pools.placement_traces import APPLY, OBSERVE, PLAN, PlacementTraces
from plimsoll_operator.pools.placer_state import PlacerState
from plimsoll_operator.pools.source_tokens import SourceTokens
from plimsoll_operator.pools.target_models import PoolMembers, PoolTarget, TargetModels
from plimsoll_operator.spec.identity import Object, ObjectKey
from plimsoll_operator.spec.profiles import NO_PROFILES, Profiles
from plimsoll_operator.spec.runtime_pool import PoolSpec, read_pool
from plimsoll_operator.spec.template import SpecError
from plimsoll_operator.status.reasons import Reason
from plimsoll_telemetry.phases import Phases

PATIENCE = timedelta(seconds=10)
"""How long to wait for starting hosts, from when the first host became ready."""


def starting(pods: Iterable[Pod], now: datetime) -> str:
    """Return why models are not yet placed for the first time: the hosts that are starting, as text. "" if none is
    starting, if no host is ready, or if one has been ready for `PATIENCE`.

    A clock that differs from the node's by more than `PATIENCE` ends the wait, so it never exceeds twice that.
    """
    live = [pod for pod in pods if pod.live]
    ready = [pod for pod in live if pod.ready]
    late = [pod.name for pod in live if not pod.ready and pod.scheduled and not pod.leaving and pod.failure is None]
    if not late or not ready or any(abs(now - pod.moved) >= PATIENCE for pod in ready):
        return ""
    return f"waiting up to {PATIENCE.seconds} s for starting hosts: {', '.join(sorted(late))}"


def first_places(plan: Plan, state: PoolState) -> frozenset[ObjectKey]:
    """Return the models that are on no host and for which the plan has only placements of files."""
    there = {copy.model for host in state.hosts for copy in host.models}
    files = {one.model for one in plan.actions if isinstance(one, Place) and one.because is ActionCause.MISSING}
    more = {one.model for one in plan.actions if not (isinstance(one, Place) and one.because is ActionCause.MISSING)}
    return frozenset(files - more - there)


def without(plan: Plan, models: frozenset[ObjectKey]) -> Plan:
    """Return the plan without the actions and placements of these models. Their refusals stay."""
    return msgspec.structs.replace(
        plan,
        actions=tuple(action for action in plan.actions if action.model not in models),
        placements=tuple(placement for placement in plan.placements if placement.model not in models),
    )


logger = logging.getLogger(__name__)

LOOK_AGAIN = timedelta(seconds=10)
"""Interval of plans without events: reports' numbers change without an event, and with them the retention values."""
FIRST_REPORT = timedelta(seconds=1)
TOLD_KEPT = 16

Planner = Callable[[PoolState], Plan]


class Placer:
    """Places the models of pools. Calls `wake` with models whose placement has changed, so that they are reconciled."""

    def __init__(
        self,
        stores: Stores,
        registry: HostRegistry,
        members: PoolMembers,
        names: NameRegistry,
        nodes: NodeRegistry,
        tokens: SourceTokens,
        planner: Planner,
        connect: Connect,
        *,
        may_act: Callable[[], bool],
        wake: Callable[[ObjectKey], None],
        note: Callable[[str], None],
        replan: Callable[[ObjectKey], None],
        draining: Callable[[str], bool],
        clock: Callable[[], datetime] = utc_now,
        profiles: Profiles = NO_PROFILES,
        traces: PlacementTraces | None = None,
    ) -> None:
        self._traces = traces
        self._profiles = profiles
        self._stores = stores
        self._registry = registry
        self._members = members
        self._targets = TargetModels(stores, registry, members, names)
        self._nodes = nodes
        self._tokens = tokens
        self._planner = planner
        self._executor = HostExecutor(connect, self.tell, may_act=may_act, clock=clock)
        self._wake = wake
        self._tell_host = note
        self._replan = replan
        self._draining = draining
        self._clock = clock
        self._pools: dict[ObjectKey, PlacerState] = {}
        self._told: dict[ObjectKey, list[PlacementEvent]] = {}
        self._missed: dict[ObjectKey, datetime] = {}

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        """Plan a pool and send its actions. Raise NotLeaderError. Actions that fail are planned again later."""
        phases = Phases()
        entry = self._stores.pools.get(key)
        if entry is None:
            self._pools.pop(key, None)
            _count_refusals(key, None)
            self._wake_all(self._members.of(key))
            return ReconcileResult(gone=True)
        try:
            spec = read_pool(entry.value, self._profiles)
        except SpecError as error:
            broken = Problem(Reason.INVALID_SPEC, f"RuntimePool {key.name} cannot be used: {error}")
            members = self._members.of(key)
            pool = self._pools.setdefault(key, PlacerState())
            pool.decided, pool.problems = True, dict.fromkeys(members, broken)
            self._wake_all(members)
            return ReconcileResult()
        pods = {pod.uid: pod for pod in observe_pods(self._stores.pods_of(entry), self._clock(), self._nodes.known)}
        tokens = await self._tokens.of(self._targets.secrets(key, spec))
        hosts = self._registry.of(key)
        if any(pod.ready and not self._is_asked(pod.uid) for pod in pods.values()):
            return ReconcileResult(again=FIRST_REPORT)  # Models on a host without a report must not be placed twice.
        pool = self._pools.setdefault(key, PlacerState())
        now = self._clock().timestamp()
        pool.forget_shown(hosts, now)
        pool.forget_moves(frozenset(self._members.of(key)))
        pool.measure(hosts, self._stored_needs(hosts))
        target = self._targets.of(key, spec, pool, hosts, tokens)
        state = PoolState(
            now=now,
            models=tuple(target.models),
            hosts=tuple(self._hosts(pool, hosts, pods)),
            demand=tuple(pool.demand(hosts, now)),
            rules=Rules(minimum_residency=float(spec.minimum_residency)),
        )
        heard = [known.heard for known in hosts if known.report is not None]
        if heard:
            REPORT_AGE.observe(max(0.0, now - min(heard)))
        phases.end(OBSERVE)
        with PLANNING.time():
            plan = self._planner(state)
        late = starting(pods.values(), self._clock())
        held = first_places(plan, state) if late else frozenset()
        plan = without(plan, held)
        phases.end(PLAN)
        before = pool.refusals
        _count_refusals(key, plan)
        self._admit(pool, hosts, target)
        self._note_files(key, pool, spec)
        waiting = {one.model: one.message for one in plan.refusals if one.reason is RefusedBy.WAITS_FOR_HOST}
        plan = _without_waiting(plan, spec)
        self._note(key, pool, plan, target.problems, waiting | dict.fromkeys(held, late))
        with self._traced(key, plan, before, phases, len(hosts)):
            await self._executor.carry_out(pool, hosts, plan.actions, target.specs)
            await self._executor.pin(hosts, target.specs)
        waits = [
            FIRST_REPORT if held else LOOK_AGAIN,
            *([timedelta(seconds=plan.wait)] if plan.wait is not None else []),
        ]
        return ReconcileResult(again=min(waits))

    def placement(self, model: ObjectKey, key: ObjectKey) -> ModelPlacement | None:
        """Return the placement of a model in a pool; None while it is not known."""
        name = shown(model, key)
        pool = self._pools.get(key)
        if self._stores.pools.get(key) is None:
            return None if self._may_come(key) else ModelPlacement(name, problem=self._missing(key))
        self._missed.pop(key, None)
        if pool is None or not pool.decided:
            return None
        problem = self._problem(model, pool)
        if problem is not None and not problem.keeps:
            return ModelPlacement(name, problem=problem)
        return ModelPlacement(
            name,
            tuple(self._copies(model, key, pool)),
            problem,
            pool.held.get(model, ""),
            pool.files,
            refused_reports(self._registry.of(key)),
        )

    def admits(self, pool: ObjectKey, model: ObjectKey) -> bool | None:
        """Return whether a model may be on a pool's hosts; None while that is not known."""
        known = self._pools.get(pool)
        return None if known is None or known.admitted is None else model in known.admitted

    def untold(self, model: ObjectKey) -> list[PlacementEvent]:
        """Return the decisions about a model that have no event yet, and forget them."""
        return self._told.pop(model, [])

    def tell(self, model: ObjectKey, reason: Reason, why: str) -> None:
        """Queue an event for a decision about a model, if it names a pool."""
        if self._members.pool_of(model) is None:
            return
        self._told[model] = [*self._told.get(model, ()), PlacementEvent(reason, why)][-TOLD_KEPT:]
        self._wake(model)

    def forget(self, model: ObjectKey) -> None:
        """Discard the events of a model that is deleted or names no pool, and its series."""
        self._told.pop(model, None)
        EVICTIONS.remove(*model)

    def served_elsewhere(self, model: ObjectKey) -> None:
        """Queue a plan of each pool that a model no longer names but that has copies of it. Call it once the model's
        dedicated pods or its new pool serve it.
        """
        for pool in {known.pod.pool for known in self._registry.holders(model)} - {self._members.pool_of(model)}:
            self._replan(pool)

    @contextmanager
    def _traced(
        self, key: ObjectKey, plan: Plan, before: Mapping[ObjectKey, Refusal], phases: Phases, hosts: int
    ) -> Iterator[None]:
        """Send a trace of a plan that is carried out within the context, if traces are on."""
        failed: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failed = error
            raise
        finally:
            phases.end(APPLY)
            if self._traces is not None:
                self._traces.ended(key, plan, before, phases, hosts, failed)

    def _is_asked(self, uid: str) -> bool:
        known = self._registry.get(uid)
        return known is not None and known.asked

    def _hosts(self, pool: PlacerState, hosts: Sequence[Known], pods: Mapping[str, Pod]) -> Iterable[Host]:
        for known in hosts:
            uid = known.pod.uid
            pod, status = pods.get(uid), self._stored(known)
            if pod is None:
                continue
            draining = self._draining(uid) or is_draining(status)
            found = host_of(pod, known, status, pool.asked.get(uid, {}), draining=draining)
            if found is not None:
                yield found

    def _stored_needs(self, hosts: Sequence[Known]) -> Iterator[tuple[ObjectKey, str, Need]]:
        """Return model, revision and size of the models of hosts that have not reported to this process, from their
        ModelHosts.
        """
        return (need for known in hosts if known.report is None for need in stored_needs(self._stored(known)))

    def _stored(self, known: Known) -> Object:
        """Return the status of a host's ModelHost."""
        entry = self._stores.hosts.get(known.pod.key)
        return (entry.value.get("status") or {}) if entry is not None else {}

    def _may_come(self, key: ObjectKey) -> bool:
        """Return whether the pool may still appear: it has been missing for less than `A_MOMENT`, by which the watch of
        pools may lag behind that of models.
        """
        if not self._stores.watches(key.namespace):
            return False
        now = self._clock()
        if key not in self._missed:
            self._missed = {pool: since for pool, since in self._missed.items() if self._members.of(pool)}
        return now - self._missed.setdefault(key, now) < A_MOMENT

    def _missing(self, key: ObjectKey) -> Problem:
        if not self._stores.watches(key.namespace):
            what = f"this operator does not watch namespace {key.namespace}, where RuntimePool {key.name} should be"
            return Problem(
                Reason.POOL_NOT_FOUND, f"{what}: add it to the chart's watchNamespaces, or name another pool"
            )
        what = f"there is no RuntimePool {key.name} in namespace {key.namespace}"
        return Problem(Reason.POOL_NOT_FOUND, f"{what}: create it, or name another one in spec.placement.pool")

    def _admit(self, pool: PlacerState, hosts: Sequence[Known], target: PoolTarget) -> None:
        """Store the models that the pool accepts. If they have changed, queue its ModelHosts, from which gateways read
        them.
        """
        before, pool.admitted = pool.admitted, frozenset(target.admitted)
        if before != pool.admitted:
            for known in hosts:
                self._tell_host(known.pod.uid)

    def _note_files(self, key: ObjectKey, pool: PlacerState, spec: PoolSpec) -> None:
        """Store the pool's claim for files. If it has changed, wake the pool's models, from whose statuses gateways
        read it.
        """
        before, pool.files = pool.files, f"{key.namespace}/{spec.files.claim}" if spec.files else ""
        if before != pool.files:
            self._wake_all(self._members.of(key))

    def _note(
        self,
        key: ObjectKey,
        pool: PlacerState,
        plan: Plan,
        problems: dict[ObjectKey, Problem],
        held: dict[ObjectKey, str],
    ) -> None:
        """Store the plan's results for each model, and wake the models for which they have changed."""
        members = self._members.of(key)
        before, decided = {model: pool.about(model) for model in members}, pool.decided
        pool.problems, pool.held, pool.decided = problems, held, True
        pool.refusals, pool.placements = {refusal.model: refusal for refusal in plan.refusals}, {}
        for placement in plan.placements:
            pool.placements.setdefault(placement.model, {})[placement.host.name] = placement.why
        if not decided:
            self._wake_all(members)
            return
        for model in members:
            old, new = before[model], pool.about(model)
            if old != new:
                self._wake(model)
            for was, found in zip(old[:2], new[:2], strict=True):
                if found is not None and (was is None or was.reason != found.reason):
                    self.tell(model, Reason.REFUSED, found.message)

    def _copies(self, model: ObjectKey, key: ObjectKey, pool: PlacerState) -> Iterable[Copy]:
        planned = pool.placements.get(model, {})
        foreign = key.namespace if key.namespace != model.namespace else ""
        for known in self._registry.of(key):
            name, entry = known.pod.name, known.entries.get(model)
            if entry is None:
                if name in planned:
                    error = known.failure(model)
                    yield Copy(name, Where.PLACING, ready=False, why=planned[name], error=error, namespace=foreign)
                continue
            pod = self._stores.pods.get(known.pod.key)
            ready = pod is not None and pod.value.ready
            where = Where.UNKNOWN if not ready else OF_STATE[entry.state]
            size = entry.device or entry.host_bytes
            asked = pool.asked.get(known.pod.uid, {}).get(model)
            goes = asked is not None and asked.going
            current = name in planned or (not planned and not goes)
            error = entry.error or ""
            yield Copy(name, where, ready, size, entry.since, entry.why, error, current, foreign)

    def _problem(self, model: ObjectKey, pool: PlacerState) -> Problem | None:
        if model in pool.problems:
            return pool.problems[model]
        refusal = pool.refusals.get(model)
        if refusal is not None:
            return Problem(Reason(refusal.reason.value), refusal.message)
        for (_, refused_model), refused in pool.refused.items():
            if refused_model == model:
                return Problem(Reason.NO_ROOM, refused.message)
        return None

    def _wake_all(self, models: Iterable[ObjectKey]) -> None:
        for model in models:
            self._wake(model)


def _count_refusals(pool: ObjectKey, plan: Plan | None) -> None:
    """Set the pool's refused placements by reason; remove the series of a pool that is gone (`plan` None)."""
    counts = Counter(refusal.reason for refusal in plan.refusals) if plan is not None else None
    for reason in RefusedBy:
        if counts is not None:
            REFUSALS.labels(*pool, reason.value).set(counts[reason])
        else:
            REFUSALS.remove(*pool, reason.value)


def _without_waiting(plan: Plan, spec: PoolSpec) -> Plan:
    """Return the plan without refusals that will pass once the pool's wanted hosts exist and are ready."""
    waiting = {RefusedBy.WAITS_FOR_HOST, *([RefusedBy.NO_HOSTS] if spec.replicas else [])}
    kept = tuple(refusal for refusal in plan.refusals if refusal.reason not in waiting)
    return msgspec.structs.replace(plan, refusals=kept)
