"""What to do next, and why: a pure function of the spec and of what is there.

It is level-triggered: run twice over the same state it gives the same plan, and over the state that its plan leads to
an empty one. While ready pods of an older spec serve, a roll adds one pod at a time and takes away only what is not
needed to keep `replicas` pods ready. Pods go before others are made: an operator that is killed in between leaves fewer
pods than it meant to, never more than the cluster was to hold.

A container that crashes is started again by its kubelet, which backs off. A pod that has ended for good (evicted,
refused by its node) is replaced by us: the first at once, further ones after ever longer waits. The dead pods are the
memory of how often it happened, so they stay until their replacements serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from plimsoll_operator.observe import Observed, Pod, ServiceState
from plimsoll_operator.spec import Spec

SURGE = 1
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=10), timedelta(seconds=300)
ROUNDS_KEPT = 7


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


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in this order; `wait` is the time after which there is more to do though nothing has changed."""

    actions: tuple[Action, ...]
    wait: timedelta | None = None


def plan(spec: Spec, pod_hash: str, observed: Observed) -> Plan:
    """The actions that bring what is there closer to the spec; none when it is settled or must wait."""
    service = observed.service in (ServiceState.MISSING, ServiceState.CHANGED)
    actions: list[Action] = [ApplyService(f"the Service is {observed.service.value}")] if service else []
    live = [p for p in observed.pods if p.live]
    current = [p for p in live if p.hash == pod_hash]
    older = [p for p in live if p.hash != pod_hash]
    dead = [p for p in observed.pods if p.dead and not p.stopping]
    ended = sorted((p for p in dead if p.hash == pod_hash), key=lambda p: (p.ended, p.name))

    removed = [(p, f"{spec.replicas} in all are wanted") for p in _surplus(current, spec.replicas)]
    kept = len(current) - len(removed)
    removed += _replaced(older, current, spec.replicas)
    room = spec.replicas + (SURGE if older else 0) - (len(live) - len(removed))
    missing = max(0, min(spec.replicas - kept, room))
    wait = _wait(ended, spec.replicas, observed) if missing else None
    buried = _buried(dead, ended, ready=sum(p.ready for p in current), replicas=spec.replicas)
    removed += [(p, "it has ended for good") for p in buried]
    actions += [DeletePod(p.name, p.uid, why) for p, why in removed]
    if wait is None:
        actions += [CreatePod(_why(spec, live, older, ended))] * missing
    return Plan(tuple(actions), wait)


def _surplus(current: Sequence[Pod], replicas: int) -> list[Pod]:
    """What to take away when there are too many: what is not ready (without a node first), then the newest."""
    order = sorted(current, key=lambda p: (p.ready, p.scheduled, -p.created.timestamp(), p.name))
    return order[: max(0, len(current) - replicas)]


def _replaced(older: Sequence[Pod], current: Sequence[Pod], replicas: int) -> list[tuple[Pod, str]]:
    """Pods of an older spec that can go: those that do not serve at once, the others as far as nobody misses them."""
    idle = [(p, "its spec has changed and it does not serve") for p in older if not p.ready]
    serving = [p for p in older if p.ready]
    ready = len(serving) + sum(p.ready for p in current)
    spare = min(len(serving), max(0, ready - replicas))
    return [*idle, *((p, "its spec has changed") for p in serving[:spare])]


def _rounds(ended: Sequence[Pod], replicas: int) -> int:
    """How often all replicas have ended for good, as far as their pods are still there."""
    return len(ended) // max(1, replicas)


def _wait(ended: Sequence[Pod], replicas: int, observed: Observed) -> timedelta | None:
    """How long dead pods are not to be replaced yet."""
    rounds = _rounds(ended, replicas)
    if rounds < 2:
        return None
    pause = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (rounds - 2))
    left = ended[-1].ended + pause - observed.now
    return left if left > timedelta(0) else None


def _buried(dead: Sequence[Pod], ended: Sequence[Pod], *, ready: int, replicas: int) -> list[Pod]:
    """Dead pods to forget: of an older spec, all of them once their replacements serve, the oldest of very many."""
    older = [p for p in dead if p not in ended]
    kept = 0 if ready >= replicas else ROUNDS_KEPT * max(1, replicas)
    return older + list(ended[: max(0, len(ended) - kept)])


def _why(spec: Spec, live: Sequence[Pod], older: Sequence[Pod], ended: Sequence[Pod]) -> str:
    if older:
        return "the spec has changed"
    if ended:
        return f"{ended[-1].name} has ended for good"
    return f"{len(live)} of {spec.replicas} are there"
