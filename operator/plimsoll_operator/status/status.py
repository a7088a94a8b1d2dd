"""Describes an object's status from its spec and its pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.planning.group_placement import is_being_placed
from plimsoll_operator.planning.pod_view import PodView
from plimsoll_operator.planning.pods import ServiceState
from plimsoll_operator.planning.units import Unit
from plimsoll_operator.spec.identity import INDEX_LABEL, Object, selector
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.spec.rollout import read_rollout
from plimsoll_operator.spec.workload import Workload
from plimsoll_operator.status.conditions import (
    LOADED,
    PLACED,
    PROGRESSING,
    READY,
    RECONCILING,
    REPLICAS_IGNORED,
    ROUTABLE,
    STALLED,
    Condition,
)
from plimsoll_operator.status.groups import GroupStatus
from plimsoll_operator.status.load_progress import read_load_failure
from plimsoll_operator.status.name_conflicts import describe_conflicts
from plimsoll_operator.status.reasons import CALM, NOT_LOADED, NOT_PLACED, Reason

Fields = dict[str, Any]
KEPT = ("servedNames", "parallel", "names", "source", "desiredReplicas", "scaling", "stableRevision", "canary")
"""Status fields that stay valid for an object whose spec has errors."""


@dataclass(frozen=True, slots=True)
class Rejections:
    """Why the API server rejected a pod or a Service; None if it did not."""

    pod: str | None = None
    service: str | None = None


def describe(
    seen: PodView[Spec],
    rejections: Rejections,
    before: Sequence[Mapping[str, Any]] = (),
    groups: Sequence[GroupStatus] = (),
) -> tuple[Fields, list[Condition]]:
    """Return the status without conditions, and the conditions; `before` has those of the last status. `groups`: those
    of replicas with several pods.
    """
    spec = seen.spec
    parts = [placed_of(seen, rejections.pod), _loaded(seen, groups), _routable(seen, rejections.service)]
    ready = _idle_of(parts[1:]) if spec.idle else ready_of(seen, parts)
    progressing = progressing_of(seen, parts, before)
    lost = {conflict.name for conflict in seen.observed.lost_names}
    served = [name for name in spec.served_names if name not in lost]
    fields = {
        "observedGeneration": spec.generation,
        "replicas": len(seen.live),
        "readyReplicas": seen.ready,
        "updatedReplicas": len(seen.current),
        "selector": replica_selector(spec),
        "desiredReplicas": spec.replicas,
        "source": spec.source,
        "phase": phase_of(seen, progressing, parts),
        "servedNames": served,
        "names": ", ".join(served),
    }
    if spec.parallel is not None:
        fields["parallel"] = str(spec.parallel)
    if groups:
        fields["groups"] = [each.fields() for each in groups]
    return fields, [ready, progressing, *parts, *standard_of(progressing)]


def replica_selector(spec: Spec) -> str:
    """Return the label selector of one pod for each replica, of groups their leaders."""
    labels = selector(spec.key.name, spec.owner.uid)
    return labels if spec.pods_per_replica == 1 else f"{labels},{INDEX_LABEL}=0"


def describe_invalid(item: Object, units: Sequence[Unit], message: str) -> tuple[Fields, list[Condition]]:
    """Return the status of an object whose spec has errors: its pods stay as they are, under its present names."""
    live = [u for u in units if u.live]
    least = read_rollout(item["spec"].get("rollout", {})).least_ready(_wanted_before(item))
    return describe_unread(item, len(live), sum(u.ready for u in live), least, message)


def describe_unread(item: Object, there: int, ready: int, least: int, message: str) -> tuple[Fields, list[Condition]]:
    """Return the status of an object whose spec has errors. Of its `there` replicas, `ready` are ready; it is Ready if
    these are at least `least`.
    """
    meta, before = item["metadata"], item.get("status") or {}
    replicas = _wanted_before(item)
    fields = {
        "observedGeneration": meta["generation"],
        "replicas": there,
        "readyReplicas": ready,
        "updatedReplicas": 0,
        "selector": before.get("selector") or selector(meta["name"], meta["uid"], item["kind"]),
        "phase": "Degraded" if ready else "Failed",
        **{name: before[name] for name in KEPT if name in before},
    }
    if replicas == 0 and read_load_failure(before.get("scaling") or {}) is None:
        told = Condition(READY, True, Reason.STOPPED, "0 replicas are wanted; the spec is invalid: see Stalled")
    elif replicas and ready >= least:
        told = Condition(READY, True, Reason.READY, f"{ready} ready for requests; the spec is invalid: see Stalled")
    else:
        told = Condition(READY, False, Reason.INVALID_SPEC, message)
    progressing = Condition(PROGRESSING, False, Reason.INVALID_SPEC, message)
    unknown = "the spec is invalid: see Stalled"
    return fields, [
        told,
        progressing,
        *(Condition(kind, None, Reason.INVALID_SPEC, unknown) for kind in (PLACED, LOADED, ROUTABLE)),
        *standard_of(progressing),
        *replicas_ignored(item),
    ]


def _wanted_before(item: Object) -> int:
    """Return the desired replicas of an object whose spec has errors: `spec.replicas` or, with scaling and unless that
    is 0, those of its last status.
    """
    said: int = item["spec"].get("replicas", 1)
    if said == 0 or "scaling" not in item["spec"]:
        return said
    found: int = (item.get("status") or {}).get("desiredReplicas", said)
    return found


def _idle_of(parts: Sequence[Condition]) -> Condition:
    """Return Ready for an idle model: True if it has loaded before and a request would start it."""
    loaded, routable = parts
    part = routable if loaded.reason is Reason.IDLE else loaded
    return Condition(READY, part.status, part.reason, part.message)


def standard_of(progressing: Condition) -> list[Condition]:
    """Return the kstatus condition that follows from Progressing: Reconciling or Stalled; none for a settled object."""
    if progressing.status:
        return [Condition(RECONCILING, True, progressing.reason, progressing.message)]
    if progressing.reason is Reason.SETTLED:
        return []
    return [Condition(STALLED, True, progressing.reason, progressing.message)]


def replicas_ignored(item: Object) -> list[Condition]:
    """Return the condition that spec.replicas has no effect, because spec.scaling is set; none without scaling, or if
    spec.replicas is 0 or 1.
    """
    replicas = item["spec"].get("replicas", 1)
    if "scaling" not in item["spec"] or replicas in (0, 1):
        return []
    message = (
        f"spec.replicas is {replicas} and has no effect: spec.scaling decides, see status.desiredReplicas. Leave "
        "spec.replicas out and point no autoscaler at this object, or remove spec.scaling"
    )
    return [Condition(REPLICAS_IGNORED, True, Reason.SCALED_BY_DEMAND, message)]


def placed_of(seen: PodView[Workload], rejection: str | None) -> Condition:
    """Return Placed: True if every wanted replica has a node."""
    replicas = seen.spec.replicas
    if rejection is not None:
        return Condition(PLACED, False, *_rejected(rejection))
    if (told := _turn_of(seen)) is not None:
        return Condition(PLACED, False, *told)
    if (failure := seen.failure(NOT_PLACED)) is not None:
        return Condition(PLACED, False, failure.reason, failure.message)
    scheduled = sum(u.scheduled for u in seen.good)
    if scheduled < replicas:
        return Condition(PLACED, False, Reason.WAITING_FOR_PODS, f"{scheduled} of {replicas} replicas have a node")
    return Condition(PLACED, True, Reason.SCHEDULED, f"{scheduled} of {replicas} replicas have a node")


def _rejected(words: str) -> tuple[Reason, str]:
    return Reason.REJECTED, f"the API server rejects the pod: {words}"


def _turn_of(seen: PodView[Workload]) -> tuple[Reason, str] | None:
    """Return reason and message for a model with a group that was given back, or that waits for its turn; None if no
    group is missing, or if one is being placed for the first time.
    """
    turn, replicas = seen.observed.turn, seen.spec.replicas
    if not turn.limited or sum(u.scheduled for u in seen.good) >= replicas:
        return None
    if turn.rejected_at is not None:
        return _rejected(turn.words)
    if turn.tries:
        times = "once" if turn.tries == 1 else f"{turn.tries} times"
        takers = ", ".join(seen.observed.room_takers)
        newer = f"; since then, pods of other models got nodes: {takers}" if takers else ""
        return Reason.GROUP_NOT_PLACED, f"{turn.words}; the group was given back {times} and is tried again{newer}"
    if turn.may_place or len(seen.good) >= replicas or any(is_being_placed(u, seen.observed.now) for u in seen.units):
        return None
    return Reason.WAITS_FOR_TURN, "groups of pods are placed one at a time, the oldest first; another one has its turn"


def _loaded(seen: PodView[Spec], groups: Sequence[GroupStatus]) -> Condition:
    replicas, source = seen.spec.replicas, seen.spec.source
    if seen.spec.idle and (gave_up := seen.observed.gave_up) is not None:
        message = f"{gave_up.message}; scaled to zero before it loaded: a request or a changed spec starts it again"
        return Condition(LOADED, False, gave_up.reason, message)
    if (failure := seen.failure(NOT_LOADED)) is not None:
        return Condition(LOADED, False, failure.reason, failure.message)
    message = f"{seen.good_ready} of {replicas} replicas have loaded {source}"
    if seen.spec.idle:
        return Condition(LOADED, False, Reason.IDLE, "it has no requests; a request starts a replica")
    if seen.good_ready < replicas:
        if (group := next((each for each in groups if each.reason in CALM), None)) is not None:
            assert group.reason is not None
            return Condition(LOADED, False, group.reason, f"{message}; group {group.group}: {group.message}")
        return Condition(LOADED, False, Reason.LOADING, message)
    return Condition(LOADED, True, Reason.LOADED, message)


def _routable(seen: PodView[Spec], rejection: str | None) -> Condition:
    spec, observed = seen.spec, seen.observed
    if observed.lost_names:
        return Condition(ROUTABLE, False, *describe_conflicts(observed.lost_names))
    if observed.service is ServiceState.FOREIGN:
        message = f"a Service {spec.key.name} that is not ours exists; rename the object or delete that Service"
        return Condition(ROUTABLE, False, Reason.SERVICE_NAME_TAKEN, message)
    if rejection is not None:
        return Condition(ROUTABLE, False, Reason.REJECTED, f"the API server rejects the Service: {rejection}")
    names = ", ".join(spec.served_names)
    if spec.idle and observed.gave_up is not None:
        return Condition(
            ROUTABLE, False, Reason.NO_READY_REPLICA, f"it has no replica; a request for {names} starts one"
        )
    if spec.idle:
        return Condition(ROUTABLE, True, Reason.IDLE, f"it has no replica; a request for {names} starts one")
    if not seen.ready:
        reason = Reason.STOPPED if spec.replicas == 0 else Reason.NO_READY_REPLICA
        return Condition(ROUTABLE, False, reason, "no replica is ready for requests")
    return Condition(ROUTABLE, True, Reason.ROUTABLE, f"{seen.ready} ready for requests to {names}")


def ready_of(seen: PodView[Workload], parts: Sequence[Condition]) -> Condition:
    """Return Ready: True if enough replicas serve, of the present or an older spec. It may stay True during a rollout
    and after the loss of a node.
    """
    spec, routable = seen.spec, parts[-1]
    if spec.replicas == 0:
        return Condition(READY, True, Reason.STOPPED, "0 replicas are wanted; scale up to serve")
    if routable.status and seen.ready >= spec.rollout.least_ready(spec.replicas):
        return Condition(READY, True, Reason.READY, routable.message)
    part = next(part for part in parts if not part.status)
    return Condition(READY, False, part.reason, part.message)


def progressing_of(
    seen: PodView[Workload], parts: Sequence[Condition], before: Sequence[Mapping[str, Any]]
) -> Condition:
    """Return Progressing: False if the object is settled or has made no progress before its deadline."""
    under_way = _under_way(seen, parts)
    if under_way is None:
        return Condition(PROGRESSING, False, Reason.SETTLED, "the object matches its spec")
    reason, message = under_way
    if reason is Reason.ROLLOUT_QUEUED or seen.observed.now < seen.deadline(before):
        return Condition(PROGRESSING, True, reason, message)
    seconds = seen.spec.rollout.progress_seconds
    late = f"no progress for {seconds} s: {_hindrance(parts) or message}"
    return Condition(PROGRESSING, False, Reason.PROGRESS_DEADLINE_EXCEEDED, late)


def _under_way(seen: PodView[Workload], parts: Sequence[Condition]) -> tuple[Reason, str] | None:
    """Return the reason and message of an ongoing change; None if there is none."""
    replicas = seen.spec.replicas
    for part in parts:
        if _is_failing(part) and seen.observed.gave_up is None:
            return Reason.FAILING, f"waiting for a fix: {part.message}"
    if seen.older:
        ready = sum(u.ready for u in seen.current)
        return Reason.ROLLING, f"{ready} of {replicas} replicas have the present spec and image and are ready"
    if seen.leaving:
        count = len(seen.leaving)
        who = "1 replica leaves a node that is" if count == 1 else f"{count} replicas leave nodes that are"
        return Reason.MOVING, f"{who} being drained: {_nodes(seen.leaving)}"
    if seen.good_ready < replicas or len(seen.good) != replicas or seen.stopping:
        return Reason.SCALING, f"{seen.good_ready} of {replicas} replicas are ready, {seen.stopping} are stopping"
    if seen.held:
        return (
            Reason.ROLLOUT_QUEUED,
            "waiting in the upgrade queue: other models roll to the new image or defaults first",
        )
    return None


def _nodes(units: Sequence[Unit]) -> str:
    return ", ".join(sorted({p.node for u in units for p in u.pods if p.leaving}))


def _hindrance(parts: Sequence[Condition]) -> str:
    """Return the message of the first condition that needs attention, or ""."""
    for part in parts:
        if part.status is False and part.is_warning:
            return part.message
    return ""


def _is_failing(part: Condition) -> bool:
    return part.reason is Reason.REJECTED or part.reason in NOT_LOADED


def phase_of(seen: PodView[Workload], progressing: Condition, parts: Sequence[Condition]) -> str:
    """Return the summary `status.phase`."""
    placed, loaded, _ = parts
    if seen.observed.gave_up is not None:
        return "Failed"
    if seen.spec.replicas == 0:
        return "Idle" if any(part.reason is Reason.IDLE for part in parts) else "Stopped"
    if any(map(_is_failing, parts)) or progressing.reason is Reason.PROGRESS_DEADLINE_EXCEEDED:
        return "Degraded" if seen.ready else "Failed"
    if progressing.reason is Reason.ROLLING:
        return "Updating"
    if all(part.status for part in parts):
        return "Ready"
    if not placed.status:
        return "Degraded" if seen.ready and placed.reason in NOT_PLACED else "Pending"
    return "Degraded" if loaded.status else "Loading"
