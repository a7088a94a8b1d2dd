"""Reconciles a model with dedicated pods: observes, plans, acts and writes its status.

Of pods and other children it remembers between reconciles only writes that the stores do not show yet. A new leader
need not know them: its first list shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from plimsoll_operator.build.controller_revision import present_revision
from plimsoll_operator.build.disruption_budget import build_budget
from plimsoll_operator.build.model import build_pod, build_service
from plimsoll_operator.build.pod_revision import fits, revision, user_part
from plimsoll_operator.canary.decision import CanaryController, CanaryDecision
from plimsoll_operator.canary.split import CanarySplit, SplitPlan, plan_split
from plimsoll_operator.canary.state import State, mark_of, read_canary
from plimsoll_operator.canary.status import describe_split, step_event
from plimsoll_operator.kube.api import ApiError
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.kube.leader_registry import LeaderRegistry
from plimsoll_operator.kube.plan_executor import PlanExecutor
from plimsoll_operator.kube.result import LOOK_AGAIN, PATIENCE, SOON, ReconcileResult, retry_in
from plimsoll_operator.kube.writer import PodFactory
from plimsoll_operator.planning.actions import CreatePod
from plimsoll_operator.planning.group_placement import begin_turn, end_turn, room_takers
from plimsoll_operator.planning.group_turns import GroupTurns, Turn
from plimsoll_operator.planning.plan import plan
from plimsoll_operator.planning.pod_view import PodView
from plimsoll_operator.planning.pods import (
    Observed,
    Pod,
    ServiceState,
    lost_in,
    observe_pods,
    observe_service,
)
from plimsoll_operator.planning.revision_history import plan_history
from plimsoll_operator.planning.units import units_of
from plimsoll_operator.planning.upgrade_queue import UpgradeQueue, view_with_upgrades
from plimsoll_operator.scaling.scaler import Decision, Scaler
from plimsoll_operator.scaling.status import news, scaling_fields
from plimsoll_operator.spec.identity import KIND, Object, ObjectKey
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.status.conditions import RECONCILING, STALLED, Condition
from plimsoll_operator.status.groups import GroupStatus, group_events, groups_of, leaders_of, lost_with_their_leaders
from plimsoll_operator.status.reasons import Reason
from plimsoll_operator.status.status import Fields, Rejections, describe, replicas_ignored


@dataclass(frozen=True, slots=True)
class DedicatedPods:
    """Reconciles models with dedicated pods. Calls `wake` with other models that need a reconcile because of this
    one.
    """

    context: ReconcileContext
    executor: PlanExecutor
    upgrades: UpgradeQueue
    turns: GroupTurns
    scaler: Scaler
    canaries: CanaryController
    leaders: LeaderRegistry
    wake: Callable[[ObjectKey], None]

    async def bring_closer(self, item: Object, spec: Spec, pods: Sequence[Pod]) -> ReconcileResult:
        """Do one reconcile. Raise ApiError or NotLeaderError."""
        decision = self._decide(spec, item, pods)
        gave_up = None if decision is None else decision.scaling_status.gave_up
        spec = spec if decision is None else spec.scaled(decision.replicas)
        now = self.context.clock()
        nodes = self.context.nodes.known
        found = observe_pods(pods, now, nodes)
        service = build_service(spec)
        state, known = await self._observe_service(spec.key, service)
        turn = self._turn(spec, found, now)
        others = (entry.value for entry in self.context.stores.pods) if turn.since is not None else ()
        observed = Observed(
            pods=found,
            service=state,
            now=now,
            lost_names=self.context.names.conflicts(spec),
            gave_up=None if gave_up is None else gave_up.failure,
            turn=turn,
            room_takers=room_takers(others, turn.since),
        )
        self.context.nodes.note_use(spec.key.of(KIND), (p.node for p in observed.pods if p.node))
        rollout = await self._roll(item, spec, observed)
        item, split = await self._note_canary(item, rollout), rollout.split
        seen = self._view(spec, observed) if split is None else self._merged(split)
        words = self.leaders.follow(spec.key, leaders_of(seen))
        more = scaling_fields(decision) | rollout.fields()
        item = await self._scale(item, seen, split, decision, more, words)
        planned = _planned(seen) if split is None else plan_split(split)
        self._wake_all(end_turn(self.turns, seen, planned, nodes=nodes))
        for note in lost_with_their_leaders(seen, item.get("status") or {}):
            await self.executor.tell(item, Reason.GROUP_LOST, note, warning=True)
        if planned.given_back:
            note = f"a group was given back, and is tried again later: {planned.given_back}"
            await self.executor.tell(item, Reason.GROUP_GIVEN_BACK, note, warning=True)
        rejections, failure = await self._act(item, planned, service)
        if rejections.pod is not None:
            self._wake_all(end_turn(self.turns, seen, planned, rejections.pod, nodes))
        budget = build_budget(spec, self.context.budgets)
        late = await self.executor.keep_budget(item, spec.owner, budget, seen.units)
        error = failure or late
        if planned.actions and rejections == Rejections() and error is None:
            # The status is written after the stores show these writes.
            return ReconcileResult(again=SOON if self.executor.is_service_taken(spec.key) else PATIENCE)
        status = item.get("status") or {}
        before, groups = status.get("conditions") or [], groups_of(seen, status, words)
        fields, conditions = _described(seen, split, rejections, before, groups)
        await self.executor.write_status(item, fields | more, [*conditions, *replicas_ignored(item)])
        for reason, note, is_warning in group_events(groups, status):
            await self.executor.tell(item, reason, note, warning=is_warning)
        if any(c.type == STALLED for c in conditions):
            self._wake_all(self.upgrades.stall(spec.key))
        if error is not None:
            raise error
        rolls = split is None and any(c.type == RECONCILING for c in conditions)
        stalls_in = seen.stalls_in(before) if rolls else None
        retry = retry_in(rejections, before, now)
        waits = (planned.wait, rollout.wait, stalls_in, retry, lost_in(found, now), None if known else LOOK_AGAIN)
        return ReconcileResult(again=min((wait for wait in waits if wait is not None), default=None))

    def _decide(self, spec: Spec, item: Object, pods: Sequence[Pod]) -> Decision | None:
        """Return the scaler's decision; None for a model without `spec.scaling`."""
        if spec.scaling is None:
            self.scaler.forget(spec.key)
            return None
        status = item.get("status") or {}
        revision, stable = user_part(spec), status.get("stableRevision")
        if spec.rollout.canary is not None and stable:  # A canary starts next to a revision that has loaded.
            revision = stable
        startup = float(spec.startup_seconds)
        return self.scaler.decide(spec.key, spec.scaling, status, units_of(pods), revision=revision, startup=startup)

    async def _roll(self, item: Object, spec: Spec, observed: Observed) -> CanaryDecision:
        """Decide on a canary, and store the revisions that pods are made from before the first pod is created.

        The mark of a rollback is written before pods are deleted, so that an operator that takes over in between does
        not try the revision again.
        """
        known = self.context.stores.revisions_of(spec.owner)
        decision = self.canaries.decide(item, spec, known, observed)
        present, canary = present_revision(item, spec), decision.canary
        if canary is not None and canary.state is State.TAKEN_BACK and canary.revision == present.label:
            present = replace(present, mark=mark_of(canary).text())
        needed = {decision.stable, *(pod.revision for pod in observed.pods)}
        await self.executor.keep_history(spec, plan_history(known, present, needed, spec.history))
        return decision

    async def _note_canary(self, item: Object, decision: CanaryDecision) -> Object:
        """Write the canary's state into the status before pods are created or deleted for it, because gateways route by
        it. Return the object with the status.
        """
        before, now = read_canary(item.get("status") or {}), decision.canary
        if before == now:
            return item
        fields: dict[str, Any] = {"canary": None, **decision.fields()}
        item = await self.executor.write_fields(item, fields)
        event = step_event(before, now, decision.stable)
        if event is not None:
            await self.executor.tell(item, *event)
        return item

    async def _act(self, item: Object, planned: SplitPlan, service: Object) -> tuple[Rejections, ApiError | None]:
        rejections, failure = Rejections(), None
        for spec, actions in planned.parts:
            if actions:
                found, error = await self.executor.apply(item, spec.key, actions, self._factory(spec), service)
                rejections = Rejections(rejections.pod or found.pod, rejections.service or found.service)
                failure = failure or error
        return rejections, failure

    async def _scale(
        self,
        item: Object,
        seen: PodView[Spec],
        split: CanarySplit | None,
        decision: Decision | None,
        more: Fields,
        words: Mapping[str, str],
    ) -> Object:
        """Write a changed number of replicas into the status before acting on it, so that an operator that takes over
        in between deletes no new replica. Return the object with the status.
        """
        if decision is None or (changed := news(decision)) is None:
            return item
        status = item.get("status") or {}
        before, groups = status.get("conditions") or [], groups_of(seen, status, words)
        fields, conditions = _described(seen, split, Rejections(), before, groups)
        item = await self.executor.write_status(item, fields | more, [*conditions, *replicas_ignored(item)])
        await self.executor.tell(item, *changed)
        return item

    def _turn(self, spec: Spec, pods: Sequence[Pod], now: datetime) -> Turn:
        turn, woken = begin_turn(self.turns, spec, pods, now)
        self._wake_all(woken)
        return turn

    def _merged(self, split: CanarySplit) -> PodView[Spec]:
        """Return both revisions as one view. An upgrade of Plimsoll waits until there is only one."""
        self._wake_all(self.upgrades.end(split.sides.present.key))
        return split.merged()

    def _view(self, spec: Spec, observed: Observed) -> PodView[Spec]:
        seen, next_ones = view_with_upgrades(spec, fits(spec, self.context.image), observed, self.upgrades)
        self._wake_all(next_ones)
        return seen

    def _wake_all(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            self.wake(key)

    async def _observe_service(self, key: ObjectKey, wanted: Mapping[str, Any]) -> tuple[ServiceState, bool]:
        """Return the Service's state, and whether the watch shows its changes: it does not for a Service of another
        owner.
        """
        found, heard = await self.executor.found_service(key)
        state = observe_service(found, wanted)
        return state, heard or state not in (ServiceState.FOREIGN, ServiceState.LEFT_OVER)

    def _factory(self, spec: Spec) -> PodFactory:
        image = self.context.image

        def pod(suffix: str, action: CreatePod) -> Object:
            return build_pod(spec, image, suffix, action.group, action.index, action.leader, action.avoid)

        return PodFactory(revision(spec, image), pod)


def _planned(seen: PodView[Spec]) -> SplitPlan:
    planned = plan(seen)
    return SplitPlan(((seen.spec, planned.actions),), planned.wait, planned.waits_for_turn, planned.given_back)


def _described(
    seen: PodView[Spec],
    split: CanarySplit | None,
    rejections: Rejections,
    before: Sequence[Mapping[str, Any]],
    groups: Sequence[GroupStatus],
) -> tuple[Fields, list[Condition]]:
    if split is None:
        return describe(seen, rejections, before, groups)
    return describe_split(split, rejections, before, groups)
