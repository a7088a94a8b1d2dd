"""Describes the status of a model with placement from its spec and its placement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from plimsoll_operator.pools.model_placement import UNDER_WAY, Copy, ModelPlacement, Where
from plimsoll_operator.spec.identity import POOL_KIND, Object, selector
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.status.conditions import LOADED, PLACED, PROGRESSING, READY, ROUTABLE, Condition
from plimsoll_operator.status.name_conflicts import ADVICE, NameConflict, describe_conflicts
from plimsoll_operator.status.reasons import Reason
from plimsoll_operator.status.status import Fields, describe_unread, standard_of


def describe_pooled(
    spec: Spec, placement: ModelPlacement, own_ready: int, lost_names: Sequence[NameConflict]
) -> tuple[Fields, list[Condition]]:
    """Return the status without conditions, and the conditions.

    `own_ready`: ready dedicated pods, which are deleted once the pool serves the model.
    """
    assert spec.placement is not None
    parts = [_placed(spec, placement), _loaded(spec, placement), _routable(spec, placement, own_ready, lost_names)]
    ready, progressing = _ready(spec, placement, parts), _progressing(spec, placement, parts, own_ready)
    lost = {conflict.name for conflict in lost_names}
    served = [name for name in spec.served_names if name not in lost]
    fields = {
        "observedGeneration": spec.generation,
        "replicas": len(placement.copies) + own_ready,
        "readyReplicas": placement.answering + own_ready,
        "updatedReplicas": sum(copy.current and copy.is_there for copy in placement.copies),
        "selector": selector(spec.placement.pool, kind=POOL_KIND),
        "desiredReplicas": spec.replicas,
        "source": spec.source,
        "phase": _phase(spec, placement, progressing, parts),
        "servedNames": served,
        "names": ", ".join(served),
        **_placed_fields(placement),
    }
    return fields, [ready, progressing, *parts, *standard_of(progressing)]


def describe_invalid_pooled(
    item: Object, placement: ModelPlacement, own_ready: int, message: str
) -> tuple[Fields, list[Condition]]:
    """Return the status of a model whose spec has errors, without conditions, and the conditions. Hosts keep the model
    as they have it, and it keeps its served names.
    """
    there, ready = len(placement.copies) + own_ready, placement.answering + own_ready
    fields, conditions = describe_unread(item, there, ready, 1, message)
    return fields | _placed_fields(placement), conditions


def _placed_fields(placement: ModelPlacement) -> Fields:
    return {
        "where": _where(placement),
        "why": _why(placement)[:512],
        "placements": [_placement(copy) for copy in placement.copies],
        **({"filesClaim": placement.files} if placement.files else {}),
    }


def _where(placement: ModelPlacement) -> str:
    return ", ".join(copy.place for copy in placement.copies)[:256]


def _placement(copy: Copy) -> dict[str, Any]:
    found: dict[str, Any] = {"host": copy.host, "state": copy.where.value, "bytes": copy.bytes, "why": copy.why[:512]}
    if copy.namespace:
        found["namespace"] = copy.namespace
    if copy.since is not None:
        found["since"] = datetime.fromtimestamp(copy.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


def _why(placement: ModelPlacement) -> str:
    if placement.problem is not None:
        return placement.problem.message
    return next((copy.error or copy.why for copy in placement.copies if copy.error or copy.why), "")


def _placed(spec: Spec, placement: ModelPlacement) -> Condition:
    there = sum(copy.is_there and copy.where is not Where.UNKNOWN for copy in placement.copies)
    message = f"it is on {there} of {spec.replicas} hosts of RuntimePool {placement.pool}"
    doubts = f"; {placement.refused}" if placement.refused else ""
    if there >= spec.replicas:
        return Condition(PLACED, True, Reason.PLACED, message + doubts)
    if placement.problem is not None:
        return Condition(PLACED, False, placement.problem.reason, f"{message}: {placement.problem.message}{doubts}")
    if placement.refused:
        return Condition(PLACED, False, Reason.REPORT_REFUSED, message + doubts)
    return Condition(PLACED, False, Reason.PLACING, f"{message}; {placement.held}" if placement.held else message)


def _loaded(spec: Spec, placement: ModelPlacement) -> Condition:
    awake = sum(copy.where is Where.RESIDENT for copy in placement.copies)
    message = f"{awake} of {spec.replicas} replicas are in device memory"
    if awake:
        return Condition(LOADED, True, Reason.LOADED, message)
    error = next((copy for copy in placement.copies if copy.error), None)
    if error is not None:
        return Condition(LOADED, False, Reason.LOAD_FAILED, f"{error.host}: {error.error}")
    if placement.asleep:
        return Condition(LOADED, False, Reason.ASLEEP, f"{message}; a request wakes it")
    return Condition(LOADED, False, Reason.LOADING, message)


def _routable(spec: Spec, placement: ModelPlacement, own_ready: int, lost_names: Sequence[NameConflict]) -> Condition:
    if lost_names:
        return Condition(ROUTABLE, False, *describe_conflicts(lost_names))
    names = ", ".join(spec.served_names)
    if placement.answering and placement.asleep:
        return Condition(
            ROUTABLE, True, Reason.ASLEEP, f"asleep on {placement.answering} hosts; a request wakes {names}"
        )
    if answering := placement.answering + own_ready:
        return Condition(ROUTABLE, True, Reason.ROUTABLE, f"{answering} ready for requests to {names}")
    reason = Reason.STOPPED if spec.replicas == 0 else Reason.NO_READY_REPLICA
    return Condition(ROUTABLE, False, reason, "no replica is ready for requests")


def _ready(spec: Spec, placement: ModelPlacement, parts: Sequence[Condition]) -> Condition:
    """Return Ready, which is True for a model that is asleep: a request wakes it."""
    placed, loaded, routable = parts
    if spec.replicas == 0:
        return Condition(READY, True, Reason.STOPPED, "0 replicas are wanted; scale up to serve")
    if routable.status:
        reason = Reason.ASLEEP if routable.reason is Reason.ASLEEP else Reason.READY
        return Condition(READY, True, reason, routable.message)
    if routable.reason in ADVICE:
        return Condition(READY, False, routable.reason, routable.message)
    part = next((part for part in (placed, loaded) if not part.status), routable)
    return Condition(READY, False, part.reason, part.message)


def _progressing(spec: Spec, placement: ModelPlacement, parts: Sequence[Condition], own_ready: int) -> Condition:
    placed, loaded, _ = parts
    if placement.problem is not None:
        return Condition(PROGRESSING, True, Reason.FAILING, f"waiting for a fix: {placement.problem.message}")
    if loaded.reason is Reason.LOAD_FAILED:
        return Condition(PROGRESSING, True, Reason.FAILING, f"waiting for a fix: {loaded.message}")
    moving = [copy for copy in placement.copies if copy.where in UNDER_WAY or not copy.current]
    if own_ready:
        message = f"its {own_ready} dedicated pods are deleted once RuntimePool {placement.pool} serves it"
        return Condition(PROGRESSING, True, Reason.MOVING, message)
    if not placed.status or len(placement.copies) != spec.replicas:
        return Condition(PROGRESSING, True, Reason.SCALING, placed.message)
    if moving:
        told = ", ".join(copy.place for copy in moving)
        return Condition(PROGRESSING, True, Reason.LOADING, f"in progress: {told}")
    return Condition(PROGRESSING, False, Reason.SETTLED, "the object matches its spec")


def _phase(spec: Spec, placement: ModelPlacement, progressing: Condition, parts: Sequence[Condition]) -> str:
    placed, loaded, routable = parts
    if spec.replicas == 0:
        return "Stopped"
    if progressing.reason is Reason.FAILING:
        return "Degraded" if routable.status else "Failed"
    if routable.status:
        return "Asleep" if placement.asleep else "Ready"
    return "Loading" if placed.status and not loaded.status else "Pending"
