"""One pass over one object: read, plan, apply, write down. It remembers nothing, and may be killed anywhere."""

from __future__ import annotations

import logging
import random
import string
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from plimsoll_operator.api import Api, ApiError
from plimsoll_operator.build.pod import Image, build_pod, pod_hash
from plimsoll_operator.build.service import build_service
from plimsoll_operator.events import build_event, is_warning, worth_telling
from plimsoll_operator.identity import Object, ObjectKey
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.observe import Observed, observe_pods, observe_service
from plimsoll_operator.plan import Action, ApplyService, CreatePod, DeletePod, plan
from plimsoll_operator.reasons import Reason
from plimsoll_operator.spec import Spec, SpecError, read_spec
from plimsoll_operator.status import Condition, describe, describe_invalid, transitions, with_times

logger = logging.getLogger(__name__)

SUFFIX = string.ascii_lowercase + string.digits
SUFFIX_LENGTH = 5


class NotLeaderError(Exception):
    """The Lease was lost in the middle of a pass: nothing more may be written."""


class Reconciler:
    """Brings objects to their specs. `may_act` is asked before every change."""

    def __init__(self, api: Api, image: Image, names: NameRegistry, instance: str, may_act: Callable[[], bool]) -> None:
        self._api = api
        self._image = image
        self._names = names
        self._instance = instance
        self._may_act = may_act

    async def reconcile(self, key: ObjectKey) -> bool:
        """One pass. Returns whether anything was changed beside the status: another pass will see more then.

        Raises ApiError when the API server fails (a later pass goes on from there) and NotLeaderError.
        """
        item = await self._api.model(key)
        if item is None or "deletionTimestamp" in item["metadata"]:
            return False
        pods = await self._api.pods(key)
        try:
            spec = read_spec(item)
        except SpecError as error:
            observed_pods = observe_pods(pods, item["metadata"]["uid"])
            fields, conditions = describe_invalid(item["metadata"]["generation"], key.name, observed_pods, str(error))
            await self._write_status(item, fields, conditions)
            return False
        wanted_service = build_service(spec)
        observed = Observed(
            pods=observe_pods(pods, spec.owner.uid),
            service=observe_service(await self._api.service(key), wanted_service),
            name_holders=self._names.holders(spec),
        )
        present = pod_hash(spec, self._image)
        actions = plan(spec, present, observed)
        rejection = await self._apply(item, spec, actions, wanted_service)
        fields, conditions = describe(spec, present, observed, rejection)
        await self._write_status(item, fields, conditions)
        return bool(actions) and rejection is None

    async def _apply(
        self, item: Object, spec: Spec, actions: Sequence[Action], service: Mapping[str, Any]
    ) -> str | None:
        """Carry a plan out. Returns the API server's words when it refuses a pod for what it is."""
        for action in actions:
            self._check_leader()
            logger.info("%s: %s", spec.key, action)
            if isinstance(action, CreatePod):
                suffix = "".join(random.choices(SUFFIX, k=SUFFIX_LENGTH))
                pod = build_pod(spec, self._image, suffix)
                try:
                    await self._api.create_pod(pod)
                except ApiError as error:
                    if error.is_refusal:
                        return str(error)
                    raise
                await self._tell(item, Reason.POD_CREATED, f"created pod {pod['metadata']['name']}: {action.why}")
            elif isinstance(action, DeletePod):
                await self._api.delete_pod(ObjectKey(spec.key.namespace, action.name), action.uid)
                await self._tell(item, Reason.POD_DELETED, f"deleted pod {action.name}: {action.why}")
            elif isinstance(action, ApplyService):
                await self._api.apply_service(service)
                await self._tell(item, Reason.SERVICE_APPLIED, f"applied Service {spec.key.name}: {action.why}")
        return None

    async def _write_status(self, item: Object, fields: dict[str, Any], conditions: Sequence[Condition]) -> None:
        """Write the status if it says anything new, and an event for each transition."""
        before = item.get("status") or {}
        known = before.get("conditions") or []
        generation = item["metadata"]["generation"]
        status = {**fields, "conditions": with_times(conditions, known, generation, datetime.now(UTC))}
        if _same(status, before):
            return
        self._check_leader()
        await self._api.apply_status(item, status)
        for condition in transitions(conditions, known):
            if worth_telling(condition):
                note = f"{condition.type} is {condition.status}: {condition.message}"
                await self._tell(item, condition.reason, note, warning=is_warning(condition))

    async def _tell(self, item: Object, reason: Reason, note: str, *, warning: bool = False) -> None:
        """Events inform people; one that cannot be written stops nothing."""
        try:
            await self._api.create_event(build_event(item, self._instance, reason, note, warning=warning))
        except ApiError as error:
            logger.warning("the event %r could not be written: %s", note, error)

    def _check_leader(self) -> None:
        if not self._may_act():
            raise NotLeaderError("the Lease is lost")


def _same(status: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Equal, but for the order of conditions."""

    def ordered(value: Mapping[str, Any]) -> dict[str, Any]:
        return {**value, "conditions": sorted(value.get("conditions") or [], key=lambda c: str(c["type"]))}

    return ordered(status) == ordered(before)
