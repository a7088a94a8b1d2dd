"""One pass over one object: observe, plan, apply, write down. It reads caches, and may be killed anywhere.

Between passes it remembers only what caches have not seen yet of its own writes. A new process need not know: its first
list shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from plimsoll_operator.api import Api, ApiError
from plimsoll_operator.budget import ApplyBudget, DeleteBudget, FoundBudget, plan_budget, read_budget
from plimsoll_operator.build.budget import Budgets, build_budget
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.revision import fits
from plimsoll_operator.build.service import build_service
from plimsoll_operator.conditions import OURS, RECONCILING, STALLED, Condition, news, with_times
from plimsoll_operator.events import build_event
from plimsoll_operator.expectations import PATIENCE_SECONDS, Expectations
from plimsoll_operator.identity import KIND, Object, ObjectKey, key_of
from plimsoll_operator.kinds import Caches
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.nodes import NodeRegistry
from plimsoll_operator.observe import (
    Observed,
    Pod,
    ServiceState,
    observe_pods,
    observe_service,
    read_service,
    selecting_uid,
)
from plimsoll_operator.plan import Action, ApplyService, CreatePod, DeletePod, plan
from plimsoll_operator.reasons import Reason
from plimsoll_operator.spec import Spec, SpecError, read_spec
from plimsoll_operator.status import Rejections, describe, describe_invalid
from plimsoll_operator.turns import Turns
from plimsoll_operator.view import View, view
from plimsoll_operator.writes import Writes

logger = logging.getLogger(__name__)

PATIENCE = timedelta(seconds=PATIENCE_SECONDS)
LOOK_AGAIN = timedelta(seconds=60)
"""How often we look at what nothing tells us of: somebody else's Service in the way, a namespace that ends."""


class NotLeaderError(Exception):
    """The Lease was lost in the middle of a pass: nothing more may be written."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass came to: whether the object is gone, and when it needs another pass though nothing tells us.

    `put_off`: there was none, because the caches have not seen yet what the last one wrote.
    """

    gone: bool = False
    again: timedelta | None = None
    put_off: bool = False


def utc_now() -> datetime:
    """The time of day."""
    return datetime.now(UTC)


class Reconciler:
    """Brings objects to their specs.

    `may_act` is asked before every change; `wake` is told of other objects that need a pass because of this one.
    `budgets`: for which objects disruption budgets are made.
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
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._api = api
        self._caches = caches
        self._expectations = expectations
        self._image = image
        self._names = names
        self._nodes = nodes
        self._turns = turns
        self._instance = instance
        self._may_act = may_act
        self._wake = wake
        self._budgets = budgets
        self._clock = clock
        self._writes = Writes(api, caches, expectations)

    async def reconcile(self, key: ObjectKey) -> Outcome:
        """One pass. Raises ApiError when the API server fails (a later pass goes on from there) and NotLeaderError."""
        if not self._expectations.may_pass(key.of(KIND)):
            return Outcome(again=PATIENCE, put_off=True)
        model = self._caches.models.get(key)
        for neighbour in self._names.forget(key) if model is None else self._names.note(model.value):
            self._wake(neighbour)
        if model is None:
            self._writes.forget(key)
            self._nodes.note_use(key, ())
            self._wake_all(self._turns.end(key))
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
        try:
            return await self._bring_closer(model.value, spec, pods)
        except ApiError as error:
            if not error.namespace_ends:
                raise
            logger.info("%s: its namespace is being deleted, and it will be with it", key)
            return Outcome(again=LOOK_AGAIN)

    async def _bring_closer(self, item: Object, spec: Spec, pods: Sequence[Pod]) -> Outcome:
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
        self._nodes.note_use(spec.key, (p.node for p in observed.pods if p.node))
        seen = self._view(spec, observed)
        planned = plan(seen)
        rejections, failure = await self._apply(item, spec, planned.actions, service)
        if planned.actions and rejections == Rejections() and failure is None:
            await self._keep_budget(item, spec, uid)
            return Outcome(again=PATIENCE)  # what came of it is written down once the caches show it
        before = (item.get("status") or {}).get("conditions") or []
        fields, conditions = describe(seen, rejections, before)
        await self._write_status(item, fields, conditions)
        if any(c.type == STALLED for c in conditions):
            self._wake_all(self._turns.stall(spec.key))
        await self._keep_budget(item, spec, uid)
        if failure is not None:
            raise failure
        stalls_in = seen.deadline(before) - now if any(c.type == RECONCILING for c in conditions) else None
        waits = (planned.wait, stalls_in, None if known else LOOK_AGAIN)
        return Outcome(again=min((wait for wait in waits if wait is not None), default=None))

    def _view(self, spec: Spec, observed: Observed) -> View:
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

    async def _apply(
        self, item: Object, spec: Spec, actions: Sequence[Action], service: Mapping[str, Any]
    ) -> tuple[Rejections, ApiError | None]:
        """Carry a plan out as far as the API server lets us.

        Returns its words where it refuses something for what it is, and the error that a later try may not meet. An
        outage or a conflict is raised at once.
        """
        rejections, failure = Rejections(), None
        for action in actions:
            if isinstance(action, CreatePod) and rejections.pod is not None:
                continue  # it would be refused in the same words
            if not self._may_act():
                raise NotLeaderError("the Lease is lost")
            logger.info("%s: %s", spec.key, action)
            try:
                await self._act(item, spec, action, service)
            except ApiError as error:
                if error.is_passing or error.namespace_ends:
                    raise
                if isinstance(action, ApplyService):
                    rejections = replace(rejections, service=str(error))
                elif isinstance(action, CreatePod):
                    rejections = replace(rejections, pod=str(error))
                if not error.is_refusal or isinstance(action, DeletePod):
                    failure = error
        return rejections, failure

    async def _act(self, item: Object, spec: Spec, action: Action, service: Mapping[str, Any]) -> None:
        match action:
            case CreatePod(why):
                name = await self._writes.create_pod(spec, self._image)
                await self._tell(item, Reason.POD_CREATED, f"created pod {name}: {why}")
            case DeletePod(name, uid, why):
                await self._writes.delete_pod(spec.key, name, uid)
                await self._tell(item, Reason.POD_DELETED, f"deleted pod {name}: {why}")
            case ApplyService(why):
                await self._writes.apply_service(spec.key, service)
                await self._tell(item, Reason.SERVICE_APPLIED, f"applied Service {spec.key.name}: {why}")

    async def _keep_budget(self, item: Object, spec: Spec, uid: str | None) -> None:
        """A budget that is refused costs a line in the log: the model serves without."""
        wanted = build_budget(spec, uid, self._budgets)
        try:
            action = plan_budget(spec.owner, await self._found_budget(spec.key, wanted is not None), wanted)
            if action is not None and not self._may_act():
                raise NotLeaderError("the Lease is lost")
            match action:
                case ApplyBudget(budget, why):
                    await self._writes.apply_budget(spec.key, budget)
                    await self._tell(item, Reason.BUDGET_APPLIED, f"applied PodDisruptionBudget {spec.key.name}: {why}")
                case DeleteBudget(found, why):
                    await self._writes.delete_budget(spec.key, found)
                    await self._tell(item, Reason.BUDGET_DELETED, f"deleted PodDisruptionBudget {spec.key.name}: {why}")
        except ApiError as error:
            if not error.is_refusal or error.namespace_ends:
                raise
            logger.warning("%s: its PodDisruptionBudget is refused: %s", spec.key, error)

    async def _found_budget(self, key: ObjectKey, is_wanted: bool) -> FoundBudget | None:
        """As with Services: before one is made, its name is asked for."""
        entry = self._caches.budgets.get(key)
        if entry is not None or not is_wanted:
            return entry.value if entry is not None else None
        item = await self._api.budget(key)
        return None if item is None else read_budget(item)

    async def _report_invalid(self, item: Object, pods: Sequence[Pod], error: SpecError) -> None:
        self._wake_all(self._turns.end(key_of(item)))
        found = observe_pods(pods, self._clock(), self._nodes.known)
        await self._write_status(item, *describe_invalid(item, found, str(error)))

    async def _write_status(self, item: Object, fields: dict[str, Any], conditions: Sequence[Condition]) -> None:
        """Write the status if it says anything new, and an event for each transition."""
        before = item.get("status") or {}
        known = before.get("conditions") or []
        status = {**fields, "conditions": with_times(conditions, known, item["metadata"]["generation"], self._clock())}
        if _same(status, before):
            return
        if not self._may_act():
            raise NotLeaderError("the Lease is lost")
        await self._writes.apply_status(key_of(item), item, status)
        for condition in news(conditions, known):
            note = f"{condition.type} is {condition.word}: {condition.message}"
            await self._tell(item, condition.reason, note, warning=condition.is_warning)

    async def _tell(self, item: Object, reason: Reason, note: str, *, warning: bool = False) -> None:
        """Events inform people; one that cannot be written stops nothing."""
        try:
            event = build_event(item, self._instance, reason, note, self._clock(), warning=warning)
            await self._api.create_event(event)
        except ApiError as error:
            logger.warning("the event %r could not be written: %s", note, error)


def _same(status: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Equal, but for the order of conditions, and for those of other managers."""

    def ordered(value: Mapping[str, Any]) -> dict[str, Any]:
        ours = [c for c in value.get("conditions") or [] if c["type"] in OURS]
        return {**value, "conditions": sorted(ours, key=lambda c: str(c["type"]))}

    return ordered(status) == ordered(before)
