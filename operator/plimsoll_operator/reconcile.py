"""One pass over one object: observe, plan, apply, write down. It reads caches, and may be killed anywhere.

Between passes it remembers only what caches have not seen yet of its own writes. A new process need not know: its first
list shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from plimsoll_operator.actor import Actor, utc_now
from plimsoll_operator.api import Api, ApiError
from plimsoll_operator.build.budget import Budgets, build_budget
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.pod import build_pod
from plimsoll_operator.build.revision import fits, revision
from plimsoll_operator.build.service import build_service
from plimsoll_operator.canary.conductor import Conductor, Rolling, Sightings, nobody_tells
from plimsoll_operator.canary.stage import Stage, StagePlan, plan_stage
from plimsoll_operator.canary.state import State, mark_of, read_canary
from plimsoll_operator.canary.told import describe_stage, step_event
from plimsoll_operator.conditions import RECONCILING, STALLED, Condition
from plimsoll_operator.expectations import PATIENCE_SECONDS, Expectations
from plimsoll_operator.identity import KIND, Object, ObjectKey, key_of
from plimsoll_operator.kinds import Caches
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.nodes import NodeRegistry
from plimsoll_operator.observe import (
    Observed,
    Pod,
    ServiceState,
    lost_in,
    observe_pods,
    observe_service,
    read_service,
    selecting_uid,
)
from plimsoll_operator.outcome import LOOK_AGAIN, Outcome, unless_namespace_ends
from plimsoll_operator.plan import plan
from plimsoll_operator.pooled import NO_POOLS, Pooled, plan_own
from plimsoll_operator.pools.picture import Picture, Where
from plimsoll_operator.pools.pooled_status import describe_pooled
from plimsoll_operator.revisions.history import plan_history
from plimsoll_operator.revisions.stored import present_revision
from plimsoll_operator.scaling.scaler import Decision, Scaler
from plimsoll_operator.scaling.told import news, scaling_fields
from plimsoll_operator.spec import Spec, SpecError, read_spec
from plimsoll_operator.status import Fields, Rejections, describe, describe_invalid
from plimsoll_operator.turns import Turns
from plimsoll_operator.view import View, view
from plimsoll_operator.writes import Make, Writes

PATIENCE = timedelta(seconds=PATIENCE_SECONDS)


class Reconciler:
    """Brings objects to their specs.

    `may_act` is asked before every change; `wake` is told of other objects that need a pass because of this one.
    `budgets`: for which objects disruption budgets are made. `scaler`: says how many replicas models with
    `spec.scaling` want; one that hears of no gateway keeps what there is. `sightings`: what gateways counted.
    """

    def __init__(
        self,
        api: Api,
        caches: Caches,
        expectations: Expectations,
        image: Image,
        names: NameRegistry,
        nodes: NodeRegistry,
        turns: Turns,
        instance: str,
        *,
        may_act: Callable[[], bool],
        wake: Callable[[ObjectKey], None],
        budgets: Budgets = Budgets(),  # noqa: B008
        pooled: Pooled = NO_POOLS,
        scaler: Scaler | None = None,
        sightings: Sightings = nobody_tells,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._api = api
        self._caches = caches
        self._expectations = expectations
        self._image = image
        self._names = names
        self._nodes = nodes
        self._turns = turns
        self._wake = wake
        self._budgets = budgets
        self._pooled = pooled
        self._scaler = scaler or Scaler(clock=clock)
        self._conductor = Conductor(image, sightings)
        self._clock = clock
        self._writes = Writes(api, caches, expectations)
        self._actor = Actor(api, caches, self._writes, instance, may_act=may_act, clock=clock)

    async def reconcile(self, key: ObjectKey) -> Outcome:
        """One pass. Raises ApiError when the API server fails (a later pass goes on from there) and NotLeaderError."""
        if not self._expectations.may_pass(key.of(KIND)):
            return Outcome(again=PATIENCE, put_off=True)
        model = self._caches.models.get(key)
        for neighbour in self._names.forget(key) if model is None else self._names.note(model.value):
            self._wake(neighbour)
        if model is None:
            self._writes.forget(key)
            self._nodes.note_use(key.of(KIND), ())
            self._wake_all(self._turns.end(key))
            self._scaler.forget(key)
            self._conductor.forget(key)
            return Outcome(gone=True)
        if model.deleting:
            return Outcome()
        pods = self._caches.pods_of(model)
        try:
            spec = read_spec(model.value)
            self._image.of(spec)
        except SpecError as error:
            await self._report_invalid(model.value, pods, error)
            return Outcome()
        if spec.placement is not None:
            return await self._bring_into_pool(model.value, spec, pods)
        decision = self._decide(spec, model.value, pods)
        spec = spec if decision is None else spec.scaled(decision.replicas)
        return await unless_namespace_ends(key, self._bring_apart(model.value, spec, pods, decision))

    def _decide(self, spec: Spec, item: Object, pods: Sequence[Pod]) -> Decision | None:
        """How many replicas a model wants that scales; None for one that has as many as its spec says."""
        if spec.scaling is None:
            self._scaler.forget(spec.key)
            return None
        return self._scaler.decide(spec.key, spec.scaling, item.get("status") or {}, pods)

    def _decide_placed(self, spec: Spec, item: Object, picture: Picture) -> Decision | None:
        """The same of a model in a pool: its planner reads from the status what is wanted."""
        if spec.scaling is None:
            self._scaler.forget(spec.key)
            return None
        awake = sum(copy.where is Where.RESIDENT for copy in picture.copies)
        status = item.get("status") or {}
        return self._scaler.decide_placed(spec.key, spec.scaling, status, len(picture.copies), awake)

    async def _bring_apart(self, item: Object, spec: Spec, pods: Sequence[Pod], decision: Decision | None) -> Outcome:
        """In pods of its own. Once one of those serves, the pool that had it may let it go."""
        outcome = await self._bring_closer(item, spec, pods, decision)
        if any(pod.ready for pod in pods):
            self._pooled.served_elsewhere(spec.key)
        return outcome

    async def _bring_into_pool(self, item: Object, spec: Spec, pods: Sequence[Pod]) -> Outcome:
        """Its pool's planner places it; here its own pods go once its hosts answer, and its status is written."""
        self._wake_all(self._turns.end(spec.key))
        self._conductor.forget(spec.key)
        picture = self._pooled.picture(spec)
        if picture is None:
            return Outcome()
        found = observe_pods(pods, self._clock(), self._nodes.known)
        self._nodes.note_use(spec.key.of(KIND), (p.node for p in found if p.node))
        actions = plan_own(found, answered=picture.answering > 0 or spec.replicas == 0, pool=picture.pool)
        rejections, failure = await self._actor.apply(item, spec.key, actions, self._make(spec))
        assert rejections == Rejections(), "nothing is made"
        for told in self._pooled.untold(spec.key):
            await self._actor.tell(item, told.reason, told.why, warning=told.warning)
        own = sum(pod.ready for pod in found if not any(a.uid == pod.uid for a in actions))
        decision = self._decide_placed(spec, item, picture)
        spec = spec if decision is None else spec.scaled(decision.replicas)
        fields, conditions = describe_pooled(spec, picture, own, self._names.holders(spec))
        await self._actor.write_status(item, fields | scaling_fields(decision), conditions)
        if decision is not None and (changed := news(decision)) is not None:
            await self._actor.tell(item, *changed)
        await self._actor.keep_budget(item, spec.owner, None)
        if failure is not None:
            raise failure
        self._pooled.served_elsewhere(spec.key)
        return Outcome()

    async def _bring_closer(self, item: Object, spec: Spec, pods: Sequence[Pod], decision: Decision | None) -> Outcome:
        now = self._clock()
        found = observe_pods(pods, now, self._nodes.known)
        uid = selecting_uid(found, spec.owner.uid)
        service = build_service(spec, uid)
        state, known = await self._observe_service(spec.key, service)
        observed = Observed(
            pods=found,
            service=state,
            now=now,
            name_holders=self._names.holders(spec),
        )
        self._nodes.note_use(spec.key.of(KIND), (p.node for p in observed.pods if p.node))
        rolling = await self._roll(item, spec, observed)
        item, stage = await self._note_canary(item, rolling), rolling.stage
        seen = self._view(spec, observed) if stage is None else self._merged(stage)
        more = scaling_fields(decision) | rolling.fields()
        item = await self._scale(item, seen, stage, decision, more)
        planned = _planned(seen) if stage is None else plan_stage(stage)
        rejections, failure = await self._act(item, planned, service)
        if planned.actions and rejections == Rejections() and failure is None:
            await self._keep_budget(item, spec, uid)
            return Outcome(again=PATIENCE)  # what came of it is written down once the caches show it
        before = (item.get("status") or {}).get("conditions") or []
        fields, conditions = _described(seen, stage, rejections, before)
        await self._actor.write_status(item, fields | more, conditions)
        if any(c.type == STALLED for c in conditions):
            self._wake_all(self._turns.stall(spec.key))
        await self._keep_budget(item, spec, uid)
        if failure is not None:
            raise failure
        rolls = stage is None and any(c.type == RECONCILING for c in conditions)
        stalls_in = seen.deadline(before) - now if rolls else None
        waits = (planned.wait, rolling.wait, stalls_in, lost_in(found, now), None if known else LOOK_AGAIN)
        return Outcome(again=min((wait for wait in waits if wait is not None), default=None))

    async def _roll(self, item: Object, spec: Spec, observed: Observed) -> Rolling:
        """Whether it has a canary, and how far that is. What pods are made of is stored before the first is made.

        That a revision was taken back is written on it before anything else: who goes on from there does not try it.
        """
        known = self._caches.revisions_of(spec.owner)
        rolling = self._conductor.decide(item, spec, known, observed)
        present, canary = present_revision(item, spec), rolling.canary
        if canary is not None and canary.state is State.TAKEN_BACK and canary.revision == present.label:
            present = replace(present, mark=mark_of(canary).text())
        needed = {rolling.stable, *(pod.revision for pod in observed.pods)}
        await self._actor.keep_history(spec, plan_history(known, present, needed, spec.history))
        return rolling

    async def _note_canary(self, item: Object, rolling: Rolling) -> Object:
        """How far a canary is stands in the status before pods are made or deleted for it: gateways go by that."""
        before, now = read_canary(item.get("status") or {}), rolling.canary
        if before == now:
            return item
        fields: dict[str, Any] = {"canary": None, **rolling.fields()}
        item = await self._actor.write_fields(item, fields)
        event = step_event(before, now, rolling.stable)
        if event is not None:
            await self._actor.tell(item, *event)
        return item

    async def _act(self, item: Object, planned: StagePlan, service: Object) -> tuple[Rejections, ApiError | None]:
        rejections, failure = Rejections(), None
        for spec, actions in planned.parts:
            if actions:
                found, error = await self._actor.apply(item, spec.key, actions, self._make(spec), service)
                rejections = Rejections(rejections.pod or found.pod, rejections.service or found.service)
                failure = failure or error
        return rejections, failure

    async def _scale(
        self, item: Object, seen: View[Spec], stage: Stage | None, decision: Decision | None, more: Fields
    ) -> Object:
        """A decision stands in the status before anything is done for it: who goes on from there loses no replica."""
        if decision is None or (changed := news(decision)) is None:
            return item
        before = (item.get("status") or {}).get("conditions") or []
        fields, conditions = _described(seen, stage, Rejections(), before)
        item = await self._actor.write_status(item, fields | more, conditions)
        await self._actor.tell(item, *changed)
        return item

    def _merged(self, stage: Stage) -> View[Spec]:
        """What is there while there are two revisions: an upgrade of Plimsoll waits until there is one."""
        self._wake_all(self._turns.end(stage.sides.present.key))
        return stage.merged()

    def _view(self, spec: Spec, observed: Observed) -> View[Spec]:
        """What is there, sorted; a model that an upgrade of Plimsoll would roll waits for its turn."""
        fit = fits(spec, self._image)
        seen = view(spec, fit, observed)
        if seen.needs_turn and not self._turns.take(spec.key):
            return view(spec, fit, observed, may_roll=False)
        if not seen.older:
            self._wake_all(self._turns.end(spec.key))
        return seen

    def _wake_all(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            self._wake(key)

    async def _observe_service(self, key: ObjectKey, wanted: Mapping[str, Any]) -> tuple[ServiceState, bool]:
        """The state of the Service, and whether we shall hear of its changes.

        Only ours are watched, so before one is made, its name is asked for: somebody else may have it.
        """
        entry = self._caches.services.get(key)
        if entry is not None:
            return observe_service(entry.value, wanted), True
        item = await self._api.service(key)
        state = observe_service(None if item is None else read_service(item), wanted)
        return state, state not in (ServiceState.FOREIGN, ServiceState.LEFT_OVER)

    def _make(self, spec: Spec) -> Make:
        return Make(revision(spec, self._image), partial(build_pod, spec, self._image))

    async def _keep_budget(self, item: Object, spec: Spec, uid: str | None) -> None:
        await self._actor.keep_budget(item, spec.owner, build_budget(spec, uid, self._budgets))

    async def _report_invalid(self, item: Object, pods: Sequence[Pod], error: SpecError) -> None:
        self._wake_all(self._turns.end(key_of(item)))
        found = observe_pods(pods, self._clock(), self._nodes.known)
        await self._actor.write_status(item, *describe_invalid(item, found, str(error)))


def _planned(seen: View[Spec]) -> StagePlan:
    planned = plan(seen)
    return StagePlan(((seen.spec, planned.actions),), planned.wait)


def _described(
    seen: View[Spec], stage: Stage | None, rejections: Rejections, before: Sequence[Mapping[str, Any]]
) -> tuple[Fields, list[Condition]]:
    return describe(seen, rejections, before) if stage is None else describe_stage(stage, rejections, before)
