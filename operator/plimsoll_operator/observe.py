"""What is there: pods and the Service of one ModelDeployment, as plain records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from plimsoll_operator.failure import Failure, failure_of
from plimsoll_operator.identity import HASH_LABEL, KIND, UID_LABEL, Object, controller_of

LOST_AFTER = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Pod:
    """One runtime pod.

    `stopping`: it has been deleted and drains. `lost`: it should be gone for long, but its node does not say so.
    `dead`: it will never run again, and ended at `ended`. `marked`: it carries its owner's uid as a label.
    """

    name: str
    uid: str
    hash: str
    created: datetime
    scheduled: bool
    ready: bool
    stopping: bool
    lost: bool
    dead: bool
    ended: datetime
    failure: Failure | None = None
    marked: bool = False

    @property
    def live(self) -> bool:
        """Whether it counts as a replica."""
        return not self.stopping and not self.dead


class ServiceState(Enum):
    """The Service of a model, as found."""

    MISSING = "missing"
    OURS = "as it should be"
    CHANGED = "not as it should be"
    LEFT_OVER = "of an object of this name that was deleted, and about to go"
    FOREIGN = "somebody else's"


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a plan is made from, beside the spec. `name_holders`: who else has which of our served names."""

    pods: tuple[Pod, ...]
    service: ServiceState
    now: datetime
    name_holders: tuple[tuple[str, str], ...] = ()


def observe_pods(items: Iterable[Object], owner_uid: str, now: datetime) -> tuple[Pod, ...]:
    """The pods that this owner made, oldest first."""
    pods = (_pod(item, now) for item in items if controller_of(item).get("uid") == owner_uid)
    return tuple(sorted(pods, key=lambda pod: (pod.created, pod.name)))


def selecting_uid(pods: Iterable[Pod], owner_uid: str) -> str | None:
    """The uid for selectors to name: None while a replica lives that an operator of before this label has made."""
    return owner_uid if all(pod.marked for pod in pods if pod.live) else None


def observe_service(item: Object | None, wanted: Object) -> ServiceState:
    """Whether the Service is there, is ours, and says what it should."""
    if item is None:
        return ServiceState.MISSING
    owner, ours = controller_of(item), controller_of(wanted)
    if owner.get("uid") != ours["uid"]:
        same_name = (owner.get("kind"), owner.get("name")) == (KIND, ours["name"])
        return ServiceState.LEFT_OVER if same_name else ServiceState.FOREIGN
    labels, expected = item["metadata"].get("labels") or {}, wanted["metadata"]["labels"]
    same = (
        item["spec"].get("selector") == wanted["spec"]["selector"]
        and all(labels.get(key) == value for key, value in expected.items())
        and set(_ports(wanted)) <= set(_ports(item))
    )
    return ServiceState.OURS if same else ServiceState.CHANGED


def _ports(service: Object) -> list[tuple[Any, ...]]:
    return [(p.get("name"), p["port"], p.get("targetPort")) for p in service["spec"].get("ports", [])]


def _pod(item: Object, now: datetime) -> Pod:
    meta, status = item["metadata"], item.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    gone_by = meta.get("deletionTimestamp")
    dead = status.get("phase") in ("Failed", "Succeeded")
    labels = meta.get("labels") or {}
    created = _time(meta["creationTimestamp"])
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        hash=labels.get(HASH_LABEL, ""),
        created=created,
        scheduled=bool(item["spec"].get("nodeName")),
        ready=gone_by is None and not dead and conditions.get("Ready", {}).get("status") == "True",
        stopping=gone_by is not None,
        lost=gone_by is not None and now > _time(gone_by) + LOST_AFTER,
        dead=dead,
        ended=max([created, *_ends(status, conditions)]),
        failure=failure_of(status, conditions),
        marked=labels.get(UID_LABEL) == controller_of(item).get("uid"),
    )


def _ends(status: Object, conditions: Mapping[str, Any]) -> list[datetime]:
    """Times at which a pod that has ended may have done so: the latest is near enough."""
    stamps = [c.get("lastTransitionTime") for c in conditions.values()]
    stamps += [
        ((c.get("state") or {}).get("terminated") or {}).get("finishedAt")
        for c in status.get("containerStatuses") or ()
    ]
    return [_time(stamp) for stamp in stamps if stamp]


def _time(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)
