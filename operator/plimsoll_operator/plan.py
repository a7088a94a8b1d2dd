"""What to do next, and why: a pure function of the spec and of what is there.

It is level-triggered: run twice over the same state it gives the same plan, and over the state that its plan leads to
an empty one. While ready pods of an older spec serve, a roll adds one pod at a time and takes away only what is not
needed to keep `replicas` pods ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_operator.observe import Observed, Pod, ServiceState
from plimsoll_operator.spec import Spec

SURGE = 1


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Make a pod of the present spec."""

    why: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod (it drains by itself); `uid` makes sure that it is the one that was seen."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class ApplyService:
    """Make the Service, or what it should be."""

    why: str


Action = CreatePod | DeletePod | ApplyService


def plan(spec: Spec, pod_hash: str, observed: Observed) -> list[Action]:
    """The actions that bring what is there closer to the spec; empty when it is settled or must wait."""
    actions: list[Action] = []
    if observed.service in (ServiceState.MISSING, ServiceState.CHANGED):
        actions.append(ApplyService(f"the Service is {observed.service.value}"))
    actions += [DeletePod(p.name, p.uid, "it has ended for good") for p in observed.pods if p.dead and not p.stopping]
    live = [p for p in observed.pods if not p.dead and not p.stopping]
    current = [p for p in live if p.hash == pod_hash]
    older = [p for p in live if p.hash != pod_hash]
    surplus = _surplus(current, spec.replicas)
    removed = [DeletePod(p.name, p.uid, f"{spec.replicas} replicas are wanted") for p in surplus]
    removed += [DeletePod(p.name, p.uid, why) for p, why in _replaced(older, current, spec.replicas)]
    remaining = len(live) - len(removed)
    room = spec.replicas + (SURGE if older else 0) - remaining
    wanted = min(spec.replicas - (len(current) - len(surplus)), room)
    return [*actions, *(CreatePod(_why(spec, live, older)) for _ in range(wanted)), *removed]


def _surplus(current: Sequence[Pod], replicas: int) -> list[Pod]:
    """What to take away when there are too many: those that are not ready first, then the newest."""
    order = sorted(current, key=lambda p: (p.ready, -p.created.timestamp(), p.name))
    return order[: max(0, len(current) - replicas)]


def _replaced(older: Sequence[Pod], current: Sequence[Pod], replicas: int) -> list[tuple[Pod, str]]:
    """Pods of an older spec that can go: those that do not serve at once, the others as far as nobody misses them."""
    idle = [(p, "its spec has changed and it does not serve") for p in older if not p.ready]
    serving = [p for p in older if p.ready]
    ready = len(serving) + sum(p.ready for p in current)
    spare = min(len(serving), max(0, ready - replicas))
    return [*idle, *((p, "its spec has changed") for p in serving[:spare])]


def _why(spec: Spec, live: Sequence[Pod], older: Sequence[Pod]) -> str:
    if older:
        return "the spec has changed"
    return f"{len(live)} of {spec.replicas} replicas are there"
