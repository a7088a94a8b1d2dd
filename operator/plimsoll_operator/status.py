"""What an object's status says, from the spec and from what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.conditions import LOADED, PLACED, PROGRESSING, READY, ROUTABLE, Condition
from plimsoll_operator.failure import Failure
from plimsoll_operator.identity import selector
from plimsoll_operator.observe import Observed, Pod, ServiceState, selecting_uid
from plimsoll_operator.reasons import NOT_LOADED, NOT_PLACED, Reason
from plimsoll_operator.spec import Spec

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rejections:
    """Why the API server would not do what it was asked to; None where it did."""

    pod: str | None = None
    service: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The pods sorted by what they mean. `current` have the present spec; `ended` had it, and will not run again."""

    spec: Spec
    observed: Observed
    live: tuple[Pod, ...]
    current: tuple[Pod, ...]
    ended: tuple[Pod, ...]

    @property
    def ready(self) -> int:
        """Pods that serve, whatever their spec."""
        return sum(p.ready for p in self.live)

    @property
    def updated(self) -> int:
        """Pods of the present spec that serve."""
        return sum(p.ready for p in self.current)

    @property
    def stopping(self) -> int:
        """Pods that drain."""
        return sum(p.stopping and not p.lost for p in self.observed.pods)

    def failure(self, reasons: frozenset[Reason]) -> Failure | None:
        """The first failure of one of these kinds among pods of the present spec; dead ones count until replaced."""
        missing = len(self.current) < self.spec.replicas
        for pod in (*self.current, *(self.ended[-1:] if missing else ())):
            if not pod.ready and pod.failure is not None and pod.failure.reason in reasons:
                return Failure(pod.failure.reason, f"{pod.name}: {pod.failure.message}")
        return None


def view(spec: Spec, pod_hash: str, observed: Observed) -> View:
    """Sort what is there."""
    live = tuple(p for p in observed.pods if p.live)
    ended = [p for p in observed.pods if p.dead and not p.stopping and p.hash == pod_hash]
    return View(
        spec,
        observed,
        live=live,
        current=tuple(p for p in live if p.hash == pod_hash),
        ended=tuple(sorted(ended, key=lambda p: (p.ended, p.name))),
    )


def describe(seen: View, rejections: Rejections) -> tuple[Fields, list[Condition]]:
    """The status without its conditions, and the conditions."""
    spec = seen.spec
    parts = [_placed(seen, rejections.pod), _loaded(seen), _routable(seen, rejections.service)]
    ready, progressing = _ready(seen, parts), _progressing(seen, parts)
    taken = {name for name, _ in seen.observed.name_holders}
    fields = {
        "observedGeneration": spec.generation,
        "replicas": len(seen.live),
        "readyReplicas": seen.ready,
        "updatedReplicas": len(seen.current),
        "selector": selector(spec.key.name, selecting_uid(seen.observed.pods, spec.owner.uid)),
        "phase": _phase(seen, ready, progressing, parts),
        "servedNames": [name for name in spec.served_names if name not in taken],
    }
    return fields, [ready, progressing, *parts]


def describe_invalid(
    generation: int, name: str, pods: Sequence[Pod], before: Mapping[str, Any], message: str
) -> tuple[Fields, list[Condition]]:
    """The status of an object that cannot be read: what runs goes on as it is, under the names that it has."""
    live = [p for p in pods if p.live]
    fields = {
        "observedGeneration": generation,
        "replicas": len(live),
        "readyReplicas": sum(p.ready for p in live),
        "updatedReplicas": 0,
        "selector": before.get("selector") or selector(name),
        "phase": "Degraded" if any(p.ready for p in live) else "Failed",
    }
    if "servedNames" in before:
        fields["servedNames"] = before["servedNames"]
    unknown = "the spec is invalid: see Ready"
    return fields, [
        Condition(READY, False, Reason.INVALID_SPEC, message),
        Condition(PROGRESSING, False, Reason.INVALID_SPEC, message),
        *(Condition(kind, None, Reason.INVALID_SPEC, unknown) for kind in (PLACED, LOADED, ROUTABLE)),
    ]


def _placed(seen: View, rejection: str | None) -> Condition:
    replicas = seen.spec.replicas
    if rejection is not None:
        return Condition(PLACED, False, Reason.REJECTED, f"the API server refuses the pod: {rejection}")
    if (failure := seen.failure(NOT_PLACED)) is not None:
        return Condition(PLACED, False, failure.reason, failure.message)
    scheduled = sum(p.scheduled for p in seen.current)
    if scheduled < replicas:
        return Condition(PLACED, False, Reason.WAITING_FOR_PODS, f"{scheduled} of {replicas} replicas have a node")
    return Condition(PLACED, True, Reason.SCHEDULED, f"{scheduled} of {replicas} replicas have a node")


def _loaded(seen: View) -> Condition:
    replicas, source = seen.spec.replicas, seen.spec.source
    if (failure := seen.failure(NOT_LOADED)) is not None:
        return Condition(LOADED, False, failure.reason, failure.message)
    message = f"{seen.updated} of {replicas} replicas have loaded {source}"
    if seen.updated < replicas:
        return Condition(LOADED, False, Reason.LOADING, message)
    return Condition(LOADED, True, Reason.LOADED, message)


def _routable(seen: View, rejection: str | None) -> Condition:
    spec, observed = seen.spec, seen.observed
    if observed.name_holders:
        listed = ", ".join(f"{name} by {holder}" for name, holder in observed.name_holders)
        message = f"names are taken: {listed}; choose others in spec.model.servedNames"
        return Condition(ROUTABLE, False, Reason.SERVED_NAME_TAKEN, message)
    if observed.service is ServiceState.FOREIGN:
        message = f"a Service {spec.key.name} that is not ours exists; rename the object or delete that Service"
        return Condition(ROUTABLE, False, Reason.SERVICE_NAME_TAKEN, message)
    if rejection is not None:
        return Condition(ROUTABLE, False, Reason.REJECTED, f"the API server refuses the Service: {rejection}")
    if not seen.ready:
        reason = Reason.STOPPED if spec.replicas == 0 else Reason.NO_READY_REPLICA
        return Condition(ROUTABLE, False, reason, "no replica answers requests")
    names = ", ".join(spec.served_names)
    return Condition(ROUTABLE, True, Reason.ROUTABLE, f"{seen.ready} ready for requests to {names}")


def _ready(seen: View, parts: Sequence[Condition]) -> Condition:
    if seen.spec.replicas == 0:
        return Condition(READY, False, Reason.STOPPED, "0 replicas are wanted; scale up to serve")
    for part in parts:
        if not part.status:
            return Condition(READY, False, part.reason, part.message)
    return Condition(READY, True, Reason.READY, parts[-1].message)


def _progressing(seen: View, parts: Sequence[Condition]) -> Condition:
    """False when nothing changes any more: what is wanted is there, or it cannot be had before somebody acts."""
    replicas = seen.spec.replicas
    for part in parts:
        if part.reason is Reason.REJECTED or part.reason in NOT_LOADED:
            return Condition(PROGRESSING, False, Reason.FAILING, f"waiting for a fix: {part.message}")
    if len(seen.live) > len(seen.current):
        message = f"{seen.updated} of {replicas} replicas have the present spec and are ready"
        return Condition(PROGRESSING, True, Reason.ROLLING, message)
    if seen.updated < replicas or len(seen.current) != replicas or seen.stopping:
        message = f"{seen.updated} of {replicas} replicas are ready, {seen.stopping} are stopping"
        return Condition(PROGRESSING, True, Reason.SCALING, message)
    return Condition(PROGRESSING, False, Reason.SETTLED, "what is there is what is wanted")


def _phase(seen: View, ready: Condition, progressing: Condition, parts: Sequence[Condition]) -> str:
    placed, loaded, _ = parts
    if seen.spec.replicas == 0:
        return "Stopped"
    if progressing.reason is Reason.FAILING:
        return "Degraded" if seen.ready else "Failed"
    if progressing.reason is Reason.ROLLING:
        return "Updating"
    if ready.status:
        return "Ready"
    if not placed.status:
        return "Degraded" if seen.ready and placed.reason in NOT_PLACED else "Pending"
    return "Degraded" if loaded.status else "Loading"
