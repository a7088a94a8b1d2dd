"""One pass over one object: read, plan, apply, write down. It remembers nothing, and may be killed anywhere."""

from __future__ import annotations

import logging
import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from plimsoll_operator.api import Api, ApiError
from plimsoll_operator.budget import ApplyBudget, DeleteBudget, plan_budget
from plimsoll_operator.build.budget import Budgets, build_budget
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.pod import build_pod
from plimsoll_operator.build.revision import fits
from plimsoll_operator.build.service import build_service
from plimsoll_operator.conditions import OURS, RECONCILING, STALLED, Condition, news, with_times
from plimsoll_operator.events import build_event
from plimsoll_operator.identity import Object, ObjectKey, key_of
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.nodes import NodeRegistry
from plimsoll_operator.observe import Observed, observe_pods, observe_service, selecting_uid
from plimsoll_operator.plan import Action, ApplyService, CreatePod, DeletePod, plan
from plimsoll_operator.reasons import Reason
from plimsoll_operator.spec import Spec, SpecError, read_spec
from plimsoll_operator.status import Rejections, describe, describe_invalid
from plimsoll_operator.turns import Turns
from plimsoll_operator.view import View, view

logger = logging.getLogger(__name__)

SUFFIX = string.ascii_lowercase + string.digits
SUFFIX_LENGTH = 5
SOON = timedelta(seconds=0.5)


class NotLeaderError(Exception):
    """The Lease was lost in the middle of a pass: nothing more may be written."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass came to: whether the object is gone, and when it needs another pass though nothing tells us."""

    gone: bool = False
    again: timedelta | None = None


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
        self._image = image
        self._names = names
        self._nodes = nodes
        self._turns = turns
        self._instance = instance
        self._may_act = may_act
        self._wake = wake
        self._budgets = budgets
        self._clock = clock

    async def reconcile(self, key: ObjectKey) -> Outcome:
        """One pass. Raises ApiError when the API server fails (a later pass goes on from there) and NotLeaderError."""
        item = await self._api.model(key)
        for neighbour in self._names.forget(key) if item is None else self._names.note(item):
            self._wake(neighbour)
        if item is None:
            self._nodes.note_use(key, ())
            self._wake_all(self._turns.end(key))
            return Outcome(gone=True)
        if "deletionTimestamp" in item["metadata"]:
            return Outcome()
        pods = await self._api.pods(key)
        try:
            spec = read_spec(item)
            self._image.of(spec)
        except SpecError as error:
            await self._report_invalid(item, pods, error)
            return Outcome()
        return await self._bring_closer(item, spec, pods)

    async def _bring_closer(self, item: Object, spec: Spec, pods: Sequence[Object]) -> Outcome:
        now = self._clock()
        found = observe_pods(pods, spec.owner.uid, now, self._nodes.known)
        uid = selecting_uid(found, spec.owner.uid)
        service = build_service(spec, uid)
        observed = Observed(
            pods=found,
            service=observe_service(await self._api.service(spec.key), service),
            now=now,
            name_holders=self._names.holders(spec),
        )
        self._nodes.note_use(spec.key, (p.node for p in observed.pods if p.node))
        seen = self._view(spec, observed)
        planned = plan(seen)
        rejections, failure = await self._apply(item, spec, planned.actions, service)
        before = (item.get("status") or {}).get("conditions") or []
        fields, conditions = describe(seen, rejections, before)
        await self._write_status(item, fields, conditions)
        if any(c.type == STALLED for c in conditions):
            self._wake_all(self._turns.stall(spec.key))
        await self._keep_budget(item, spec, uid)
        if failure is not None:
            raise failure
        if planned.actions and rejections == Rejections():
            return Outcome(again=SOON)
        stalls_in = seen.deadline(before) - now if any(c.type == RECONCILING for c in conditions) else None
        return Outcome(again=min((t for t in (planned.wait, stalls_in) if t is not None), default=None))

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
                if error.is_passing:
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
                name = await self._create_pod(spec)
                await self._tell(item, Reason.POD_CREATED, f"created pod {name}: {why}")
            case DeletePod(name, uid, why):
                await self._api.delete_pod(ObjectKey(spec.key.namespace, name), uid)
                await self._tell(item, Reason.POD_DELETED, f"deleted pod {name}: {why}")
            case ApplyService(why):
                await self._api.apply_service(service)
                await self._tell(item, Reason.SERVICE_APPLIED, f"applied Service {spec.key.name}: {why}")

    async def _keep_budget(self, item: Object, spec: Spec, uid: str | None) -> None:
        """A budget that is refused costs a line in the log: the model serves without."""
        wanted = build_budget(spec, uid, self._budgets)
        try:
            action = plan_budget(spec.owner, await self._api.budget(spec.key), wanted)
            if action is not None and not self._may_act():
                raise NotLeaderError("the Lease is lost")
            match action:
                case ApplyBudget(budget, why):
                    await self._api.apply_budget(budget)
                    await self._tell(item, Reason.BUDGET_APPLIED, f"applied PodDisruptionBudget {spec.key.name}: {why}")
                case DeleteBudget(found, why):
                    await self._api.delete_budget(spec.key, found)
                    await self._tell(item, Reason.BUDGET_DELETED, f"deleted PodDisruptionBudget {spec.key.name}: {why}")
        except ApiError as error:
            if not error.is_refusal:
                raise
            logger.warning("%s: its PodDisruptionBudget is refused: %s", spec.key, error)

    async def _create_pod(self, spec: Spec) -> str:
        """Returns its name. A refusal does not tell it: a message that differs each time is a write in every pass."""
        pod = build_pod(spec, self._image, "".join(random.choices(SUFFIX, k=SUFFIX_LENGTH)))
        name: str = pod["metadata"]["name"]
        try:
            await self._api.create_pod(pod)
        except ApiError as error:
            raise ApiError(error.code, str(error).replace(name, spec.key.name)) from error
        return name

    async def _report_invalid(self, item: Object, pods: Sequence[Object], error: SpecError) -> None:
        self._wake_all(self._turns.end(key_of(item)))
        found = observe_pods(pods, item["metadata"]["uid"], self._clock(), self._nodes.known)
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
        await self._api.apply_status(item, status)
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
