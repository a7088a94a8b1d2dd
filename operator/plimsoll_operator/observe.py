"""What is there: pods and the Service of one ModelDeployment, as plain records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from plimsoll_operator.identity import CONTAINER, HASH_LABEL, Object, is_controlled_by
from plimsoll_operator.reasons import EXIT_REASONS, Reason

PULL_FAILURES = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
START_FAILURES = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError")
OOM_KILLED = "OOMKilled"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a pod cannot serve."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    """One runtime pod. `dead`: it will never run again. `stopping`: it has been deleted and drains."""

    name: str
    uid: str
    hash: str
    created: datetime
    scheduled: bool
    ready: bool
    stopping: bool
    dead: bool
    failure: Failure | None = None


class ServiceState(Enum):
    """The Service of a model, as found."""

    MISSING = "missing"
    OURS = "ours"
    CHANGED = "changed"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a plan is made from, beside the spec. `name_holders`: who else has which of our served names."""

    pods: tuple[Pod, ...]
    service: ServiceState
    name_holders: tuple[tuple[str, str], ...] = ()


def observe_pods(items: Iterable[Object], owner_uid: str) -> tuple[Pod, ...]:
    """The pods that this owner made, oldest first."""
    pods = (_pod(item) for item in items if is_controlled_by(item, owner_uid))
    return tuple(sorted(pods, key=lambda pod: (pod.created, pod.name)))


def observe_service(item: Object | None, wanted: Object) -> ServiceState:
    """Whether the Service is there, is ours, and says what it should."""
    if item is None:
        return ServiceState.MISSING
    if not is_controlled_by(item, wanted["metadata"]["ownerReferences"][0]["uid"]):
        return ServiceState.FOREIGN
    same = (
        _includes(item["spec"].get("selector"), wanted["spec"]["selector"])
        and _includes(item["metadata"].get("labels"), wanted["metadata"]["labels"])
        and _ports(item) == _ports(wanted)
    )
    return ServiceState.OURS if same else ServiceState.CHANGED


def _ports(service: Object) -> list[tuple[Any, ...]]:
    return [(p.get("name"), p["port"], p.get("targetPort")) for p in service["spec"].get("ports", [])]


def _includes(found: Any, wanted: Any) -> bool:
    return all((found or {}).get(key) == value for key, value in wanted.items())


def _pod(item: Object) -> Pod:
    meta, status = item["metadata"], item.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    scheduled = bool(item["spec"].get("nodeName"))
    stopping = "deletionTimestamp" in meta
    dead = status.get("phase") in ("Failed", "Succeeded")
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        hash=meta.get("labels", {}).get(HASH_LABEL, ""),
        created=datetime.fromisoformat(meta["creationTimestamp"]),
        scheduled=scheduled,
        ready=not stopping and not dead and conditions.get("Ready", {}).get("status") == "True",
        stopping=stopping,
        dead=dead,
        failure=_failure(status, conditions),
    )


def _failure(status: Object, conditions: dict[str, Any]) -> Failure | None:
    placed = conditions.get("PodScheduled", {})
    if placed.get("status") == "False" and placed.get("reason") == "Unschedulable":
        return Failure(Reason.UNSCHEDULABLE, str(placed.get("message") or "no node fits"))
    if status.get("phase") == "Failed" and status.get("reason"):
        return Failure(Reason.CRASHED, f"{status['reason']}: {status.get('message', '')}".strip(": "))
    for container in status.get("containerStatuses") or ():
        if container["name"] == CONTAINER:
            return _container_failure(container)
    return None


def _container_failure(container: Object) -> Failure | None:
    """From the waiting state, or from how the container ended the last time, as long as it is not ready again."""
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    word, message = waiting.get("reason"), waiting.get("message") or ""
    if word in PULL_FAILURES:
        return Failure(Reason.IMAGE_NOT_PULLED, message or f"{word}: {container.get('image')}")
    if word in START_FAILURES:
        return Failure(Reason.CONTAINER_NOT_STARTED, message or str(word))
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
    if ended is None or container.get("ready") or not ended.get("exitCode"):
        return None
    code = ended["exitCode"]
    reason = Reason.OUT_OF_MEMORY if ended.get("reason") == OOM_KILLED else EXIT_REASONS.get(code, Reason.CRASHED)
    text = (ended.get("message") or "").strip() or f"the runtime ended with code {code} ({ended.get('reason')})"
    restarts = container.get("restartCount", 0)
    return Failure(reason, f"{text} ({restarts} restart{'' if restarts == 1 else 's'})")
