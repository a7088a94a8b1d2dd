"""What an object's status says, from the spec and from what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plimsoll_operator.identity import selector
from plimsoll_operator.observe import Failure, Observed, Pod, ServiceState
from plimsoll_operator.reasons import Reason
from plimsoll_operator.spec import Spec

READY, PROGRESSING, PLACED, LOADED, ROUTABLE = "Ready", "Progressing", "Placed", "Loaded", "Routable"
LOAD_FAILURES = frozenset(
    {
        Reason.IMAGE_NOT_PULLED,
        Reason.CONTAINER_NOT_STARTED,
        Reason.INVALID_OPTIONS,
        Reason.MODEL_SOURCE_NOT_FOUND,
        Reason.MODEL_INVALID,
        Reason.OUT_OF_MEMORY,
        Reason.ENGINE_DIED,
        Reason.CRASHED,
    }
)
MESSAGE_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, before it has a time. `status` None is Unknown."""

    type: str
    status: bool | None
    reason: Reason
    message: str


def describe(
    spec: Spec, pod_hash: str, observed: Observed, rejection: str | None = None
) -> tuple[dict[str, Any], list[Condition]]:
    """The status without its conditions, and the conditions. `rejection`: why the API server refused a pod."""
    live = [p for p in observed.pods if not p.stopping and not p.dead]
    current = [p for p in live if p.hash == pod_hash]
    ready = [p for p in live if p.ready]
    placed, loaded = _placed(spec, current, rejection), _loaded(spec, current, ready)
    routable = _routable(spec, observed, ready)
    conditions = [
        _ready(spec, placed, loaded, routable),
        _progressing(spec, observed, current, live),
        placed,
        loaded,
        routable,
    ]
    taken = {name for name, _ in observed.name_holders}
    fields = {
        "observedGeneration": spec.generation,
        "replicas": len(live),
        "readyReplicas": len(ready),
        "updatedReplicas": len(current),
        "selector": selector(spec.key.name),
        "phase": _phase(spec, conditions, ready),
        "servedNames": [name for name in spec.served_names if name not in taken],
    }
    return fields, conditions


def describe_invalid(
    generation: int, name: str, pods: Sequence[Pod], message: str
) -> tuple[dict[str, Any], list[Condition]]:
    """The status of an object that cannot be read: what runs goes on as it is."""
    live = [p for p in pods if not p.stopping and not p.dead]
    fields = {
        "observedGeneration": generation,
        "replicas": len(live),
        "readyReplicas": sum(p.ready for p in live),
        "updatedReplicas": 0,
        "selector": selector(name),
        "phase": "Failed",
    }
    conditions = [Condition(READY, False, Reason.INVALID_SPEC, message)]
    conditions += [Condition(PROGRESSING, False, Reason.INVALID_SPEC, message)]
    conditions += [
        Condition(kind, None, Reason.INVALID_SPEC, "the spec is invalid") for kind in (PLACED, LOADED, ROUTABLE)
    ]
    return fields, conditions


def with_times(
    conditions: Sequence[Condition], before: Sequence[Mapping[str, Any]], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Conditions as they are written: the time changes only where the status does."""
    times = {c["type"]: (c["status"], c["lastTransitionTime"]) for c in before}
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    written = []
    for c in conditions:
        status = "Unknown" if c.status is None else str(c.status)
        old_status, old_time = times.get(c.type, (None, stamp))
        written.append(
            {
                "type": c.type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": old_time if old_status == status else stamp,
                "reason": c.reason.value,
                "message": c.message[:MESSAGE_LIMIT],
            }
        )
    return written


def transitions(conditions: Sequence[Condition], before: Sequence[Mapping[str, Any]]) -> list[Condition]:
    """The conditions whose status or reason is not what it was: each is worth an event."""
    known = {c["type"]: (c["status"], c["reason"]) for c in before}
    return [
        c for c in conditions if known.get(c.type) != ("Unknown" if c.status is None else str(c.status), c.reason.value)
    ]


def _placed(spec: Spec, current: Sequence[Pod], rejection: str | None) -> Condition:
    if rejection is not None:
        return Condition(PLACED, False, Reason.REJECTED, f"the API server refuses the pod: {rejection}")
    for pod in current:
        if pod.failure is not None and pod.failure.reason is Reason.UNSCHEDULABLE:
            return Condition(PLACED, False, Reason.UNSCHEDULABLE, f"{pod.name}: {pod.failure.message}")
    scheduled = sum(p.scheduled for p in current)
    if scheduled < spec.replicas:
        return Condition(PLACED, False, Reason.WAITING_FOR_PODS, f"{scheduled} of {spec.replicas} replicas have a node")
    return Condition(PLACED, True, Reason.SCHEDULED, f"all {spec.replicas} replicas have a node")


def _loaded(spec: Spec, current: Sequence[Pod], ready: Sequence[Pod]) -> Condition:
    for pod in current:
        if (failure := _load_failure(pod)) is not None:
            return Condition(LOADED, False, failure.reason, f"{pod.name}: {failure.message}")
    if len(ready) < spec.replicas:
        return Condition(
            LOADED, False, Reason.LOADING, f"{len(ready)} of {spec.replicas} replicas have loaded the model"
        )
    return Condition(LOADED, True, Reason.LOADED, f"{len(ready)} replicas have loaded {spec.source}")


def _load_failure(pod: Pod) -> Failure | None:
    failure = None if pod.ready else pod.failure
    return failure if failure is not None and failure.reason in LOAD_FAILURES else None


def _routable(spec: Spec, observed: Observed, ready: Sequence[Pod]) -> Condition:
    if observed.name_holders:
        listed = ", ".join(f"{name} by {holder}" for name, holder in observed.name_holders)
        message = f"names are taken: {listed}; choose others in spec.model.servedNames"
        return Condition(ROUTABLE, False, Reason.SERVED_NAME_TAKEN, message)
    if observed.service is ServiceState.FOREIGN:
        message = f"a Service {spec.key.name} that is not ours exists; rename the object or delete that Service"
        return Condition(ROUTABLE, False, Reason.SERVICE_NAME_TAKEN, message)
    if not ready:
        reason = Reason.STOPPED if spec.replicas == 0 else Reason.NO_READY_REPLICA
        return Condition(ROUTABLE, False, reason, "no replica answers requests")
    names = ", ".join(spec.served_names)
    return Condition(ROUTABLE, True, Reason.ROUTABLE, f"{len(ready)} replicas answer requests for {names}")


def _ready(spec: Spec, *parts: Condition) -> Condition:
    if spec.replicas == 0:
        return Condition(READY, False, Reason.STOPPED, "0 replicas are wanted; scale up to serve")
    for part in parts:
        if not part.status:
            return Condition(READY, False, part.reason, part.message)
    return Condition(READY, True, Reason.READY, parts[-1].message)


def _progressing(spec: Spec, observed: Observed, current: Sequence[Pod], live: Sequence[Pod]) -> Condition:
    failing = next((f for p in current if (f := _load_failure(p)) is not None), None)
    if failing is not None:
        return Condition(PROGRESSING, False, Reason.FAILING, f"waiting for a fix: {failing.message}")
    stopping = sum(p.stopping for p in observed.pods)
    updated = sum(p.ready for p in current)
    if len(live) > len(current) or (stopping and updated < spec.replicas):
        message = f"{updated} of {spec.replicas} replicas have the new spec and are ready"
        return Condition(PROGRESSING, True, Reason.ROLLING, message)
    if updated < spec.replicas or len(current) != spec.replicas or stopping:
        message = f"{updated} of {spec.replicas} replicas are ready, {stopping} are stopping"
        return Condition(PROGRESSING, True, Reason.SCALING, message)
    return Condition(PROGRESSING, False, Reason.SETTLED, "what is there is what is wanted")


def _phase(spec: Spec, conditions: Sequence[Condition], ready: Sequence[Pod]) -> str:
    by_type = {c.type: c for c in conditions}
    if spec.replicas == 0:
        return "Stopped"
    if by_type[PROGRESSING].reason is Reason.FAILING or by_type[PLACED].reason is Reason.REJECTED:
        return "Degraded" if ready else "Failed"
    if by_type[PROGRESSING].reason is Reason.ROLLING:
        return "Updating"
    if by_type[READY].status:
        return "Ready"
    if not by_type[PLACED].status:
        return "Pending"
    return "Degraded" if by_type[LOADED].status else "Loading"
