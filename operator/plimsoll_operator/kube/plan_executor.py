"""Executes a plan for one object, then writes its status and events."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from plimsoll_cluster.store import Store
from plimsoll_operator.build.controller_revision import build_revision
from plimsoll_operator.build.disruption_budget import budget_name
from plimsoll_operator.kube.api import ApiError
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.kube.writer import PodFactory, Writer
from plimsoll_operator.planning.actions import Action, ApplyService, CreatePod, CreateService, DeletePod
from plimsoll_operator.planning.disruption_budget import (
    ApplyBudget,
    CreateBudget,
    DeleteBudget,
    plan_budget,
)
from plimsoll_operator.planning.pods import FoundService
from plimsoll_operator.planning.revision_history import CreateRevision, ForgetRevision, HistoryAction, StoreRevision
from plimsoll_operator.planning.units import Unit
from plimsoll_operator.spec.identity import Object, ObjectKey, Owner, key_of
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.status.conditions import OURS, Condition, news, with_times
from plimsoll_operator.status.events import build_event
from plimsoll_operator.status.reasons import Reason
from plimsoll_operator.status.status import Rejections

logger = logging.getLogger(__name__)

T = TypeVar("T")


class NotLeaderError(Exception):
    """The Lease was lost during a reconcile: nothing more may be written."""


class PlanExecutor:
    """Executes plans for objects of one kind."""

    def __init__(self, context: ReconcileContext, writer: Writer) -> None:
        self._api = context.api
        self._stores = context.stores
        self._instance = context.instance
        self._may_act = context.may_act
        self._clock = context.clock
        self._writer = writer

    def check_lease(self) -> None:
        """Raise NotLeaderError if nothing may be written."""
        if not self._may_act():
            raise NotLeaderError("the Lease is lost")

    async def apply(
        self,
        item: Object,
        key: ObjectKey,
        actions: Sequence[Action],
        factory: PodFactory | None = None,
        service: Object | None = None,
    ) -> tuple[Rejections, ApiError | None]:
        """Execute a plan; continue after an action that the API server rejects. A plan that creates no pods needs no
        `factory`.

        Return the API server's rejections, and an error for the caller to raise once the status is written, so that the
        plan is tried again; None without one. An outage or a conflict is raised immediately.
        """
        rejections, failure = Rejections(), None
        for action in actions:
            if isinstance(action, CreatePod) and rejections.pod is not None:
                continue  # It would be rejected for the same reason.
            self.check_lease()
            logger.info("%s: %s", key, action)
            try:
                await self._act(item, key, action, factory, service)
            except ApiError as error:
                if error.is_passing or error.namespace_ends:
                    raise
                if isinstance(action, CreateService | ApplyService):
                    rejections = replace(rejections, service=str(error))
                elif isinstance(action, CreatePod):
                    rejections = replace(rejections, pod=str(error))
                if not error.is_refusal or isinstance(action, DeletePod):
                    failure = error
        return rejections, failure

    async def _act(
        self, item: Object, key: ObjectKey, action: Action, factory: PodFactory | None, service: Object | None
    ) -> None:
        match action:
            case CreatePod():
                assert factory is not None
                name = await self._writer.create_pod(key, factory, action)
                await self.tell(item, Reason.POD_CREATED, f"created pod {name}: {action.why}")
            case DeletePod(name, uid, why, grace):
                await self._writer.delete(key, self._stores.pods, name, uid, grace)
                await self.tell(item, Reason.POD_DELETED, f"deleted pod {name}: {why}")
            case CreateService(why):
                assert service is not None
                if await self._writer.create(key, self._stores.services, service) and not _is_new(item):
                    await self.tell(item, Reason.SERVICE_APPLIED, f"applied Service {key.name}: {why}")
            case ApplyService(why):
                assert service is not None
                await self._writer.apply(key, self._stores.services, service)
                await self.tell(item, Reason.SERVICE_APPLIED, f"applied Service {key.name}: {why}")

    async def keep_budget(
        self, item: Object, owner: Owner, wanted: Object | None, units: Iterable[Unit] = ()
    ) -> ApiError | None:
        """Create, update or (with `wanted` None) delete the disruption budget. Call this before the status reports
        `units` as ready. Log a rejected budget.

        Return an error for the caller to raise once the status is written, so that this is tried again; None without
        one. An outage or a conflict is raised immediately.
        """
        key, budget = owner.key, ObjectKey(owner.key.namespace, budget_name(owner))
        try:
            entry = await self._found(key, self._stores.budgets, budget)
            action = plan_budget(owner, entry[0], wanted, serves=any(unit.ready for unit in units))
            if action is not None:
                self.check_lease()
            match action:
                case CreateBudget(body):
                    await self._writer.create(key, self._stores.budgets, body)
                case ApplyBudget(body, why):
                    await self._writer.apply(key, self._stores.budgets, body)
                    await self.tell(item, Reason.BUDGET_APPLIED, f"applied PodDisruptionBudget {budget.name}: {why}")
                case DeleteBudget(uid, why):
                    await self._writer.delete(key, self._stores.budgets, budget.name, uid)
                    await self.tell(item, Reason.BUDGET_DELETED, f"deleted PodDisruptionBudget {budget.name}: {why}")
        except ApiError as error:
            if error.is_passing or error.namespace_ends:
                raise
            if not error.is_refusal:
                return error
            logger.warning("%s: the API server rejects its PodDisruptionBudget: %s", key, error)
        return None

    async def keep_history(self, spec: Spec, actions: Sequence[HistoryAction]) -> None:
        """Store and delete revisions. Log a rejection: the model serves, but has no canaries until its revision is
        stored.
        """
        key = spec.key
        for action in actions:
            self.check_lease()
            logger.info("%s: %s", key, action)
            try:
                match action:
                    case CreateRevision(revision):
                        body = build_revision(spec, revision)
                        if not await self._writer.create(key, self._stores.revisions, body):
                            # Its name is a hash of content and owner, so an existing one is ours.
                            await self._writer.apply(key, self._stores.revisions, body)
                    case StoreRevision(revision):
                        await self._writer.apply(key, self._stores.revisions, build_revision(spec, revision))
                    case ForgetRevision(name, uid):
                        await self._writer.delete(key, self._stores.revisions, name, uid)
            except ApiError as error:
                if not error.is_refusal or error.namespace_ends:
                    raise
                logger.warning("%s: the API server rejects its revisions: %s", key, error)

    async def found_service(self, key: ObjectKey) -> tuple[FoundService | None, bool]:
        """Return the Service of an object, and whether its changes are watched."""
        return await self._found(key, self._stores.services, key)

    def is_service_taken(self, key: ObjectKey) -> bool:
        """Return whether a Service outside the store has prevented the creation of ours."""
        return self._writer.is_taken(key, self._stores.services)

    async def _found(self, owner: ObjectKey, store: Store[T], key: ObjectKey) -> tuple[T | None, bool]:
        """Return an object's child, and whether its changes are watched.

        Only our children are watched. One of another owner is read if it has prevented the creation of ours.
        """
        entry = store.get(key)
        if entry is not None:
            return entry.value, True
        item = await self._api.get(store.resource, key) if self._writer.is_taken(owner, store) else None
        return (None, True) if item is None else (store.resource.read(item), False)

    async def write_fields(self, item: Object, fields: Mapping[str, Any]) -> Object:
        """Write these fields of the status, before acting on them; the others stay as they are, and None removes one.
        Return the object with the new status.
        """
        before = item.get("status") or {}
        ours = [c for c in before.get("conditions") or () if c["type"] in OURS]
        status = {k: v for k, v in {**before, "conditions": ours, **fields}.items() if v is not None}
        self.check_lease()
        await self._writer.apply_status(key_of(item), item, status)
        return {**item, "status": {**status, "conditions": before.get("conditions") or []}}

    async def write_status(self, item: Object, fields: dict[str, Any], conditions: Sequence[Condition]) -> Object:
        """Write the status if it has changed, and an event for each transition; return the object with it."""
        before = item.get("status") or {}
        known = before.get("conditions") or []
        status = {**fields, "conditions": with_times(conditions, known, item["metadata"]["generation"], self._clock())}
        if _same(status, before):
            return item
        self.check_lease()
        await self._writer.apply_status(key_of(item), item, status)
        for condition in news(conditions, known):
            note = f"{condition.type} is {condition.word}: {condition.message}"
            await self.tell(item, condition.reason, note, warning=condition.is_warning)
        others = [c for c in known if c["type"] not in OURS]
        return {**item, "status": {**status, "conditions": [*status["conditions"], *others]}}

    async def tell(self, item: Object, reason: Reason, note: str, *, warning: bool = False) -> None:
        """Write an event. Log an error: events are only information."""
        try:
            event = build_event(item, self._instance, reason, note, self._clock(), warning=warning)
            await self._api.create_event(event)
        except ApiError as error:
            logger.warning("cannot write the event %r: %s", note, error)


def _is_new(item: Object) -> bool:
    """Return whether the object has no conditions yet. Creating its other objects is then not worth an event."""
    return not (item.get("status") or {}).get("conditions")


def _same(status: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether two statuses are equal, ignoring the order of conditions, and conditions of other managers."""

    def ordered(value: Mapping[str, Any]) -> dict[str, Any]:
        ours = [c for c in value.get("conditions") or [] if c["type"] in OURS]
        return {**value, "conditions": sorted(ours, key=lambda c: str(c["type"]))}

    return ordered(status) == ordered(before)
