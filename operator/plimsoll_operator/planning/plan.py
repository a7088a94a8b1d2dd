"""What to do next, and why: a pure function of the spec and of what is there.

It is level-triggered: run twice over the same state it gives the same plan, and over the state that its plan leads to
an empty one. A roll adds up to `maxSurge` pods and takes away only what is not needed to keep `replicas` pods ready.
Where those find no node, up to `maxUnavailable` fewer may be ready: old ones go first. A pod on a node that is being
drained is replaced in the same way, before it must go. Pods go before others are made: an operator that is killed in
between leaves fewer pods than it meant to, never more than the cluster was to hold. Pods that take over what those
before them have kept are made when these are gone.

A container that crashes is started again by its kubelet, which backs off. A pod that has ended for good (evicted,
refused by its node) is replaced by us: the first at once, further ones after ever longer waits. The dead pods are the
memory of how often it happened, so they stay until their replacements serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

from plimsoll_operator.planning.pod_view import PodView
from plimsoll_operator.planning.pods import Observed, Pod, ServiceState
from plimsoll_operator.spec.workload import Workload
from plimsoll_operator.status.reasons import Reason


def free_groups(pods: Iterable[Pod]) -> Iterator[str]:
    """The groups that are free, the least first, without end; `pods` are all of an object."""
    taken = {pod.group for pod in pods if not pod.dead or pod.stopping}
    return (group for group in map(str, count()) if group not in taken)


ROOM_PATIENCE = timedelta(seconds=60)
"""How long a pod may find no node before an old one goes for it: a cluster that grows by itself has one by then."""
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=10), timedelta(seconds=300)
ROUNDS_KEPT = 7


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Make a pod of the present spec, with this number as its group."""

    why: str
    group: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod (it drains by itself); `uid` makes sure that it is the one that was seen."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class CreateService:
    """Make the Service: none of ours is there."""

    why: str


@dataclass(frozen=True, slots=True)
class ApplyService:
    """Make of our Service what it should be."""

    why: str


Action = CreatePod | DeletePod | CreateService | ApplyService


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in this order; `wait` is the time after which there is more to do though nothing has changed."""

    actions: tuple[Action, ...]
    wait: timedelta | None = None


def plan(seen: PodView[Workload]) -> Plan:
    """The actions that bring what is there closer to the spec; none when it is settled or must wait."""
    spec, observed = seen.spec, seen.observed
    actions: list[Action] = [*_service(observed.service)]
    dead = [p for p in observed.pods if p.dead and not p.stopping]
    going = seen.older + seen.leaving

    surplus = _surplus(seen)
    removed = [(p, f"{spec.replicas} in all are wanted") for p in surplus]
    kept = [p for p in seen.staying if p not in surplus]
    removed += [(p, _why_gone(p, seen)) for p in _replaced(seen)]
    first, wait = _first(seen, kept, {p.uid for p, _ in removed})
    removed += [(p, f"{_why_gone(p, seen)}, and its replacement needs its room") for p in first]
    there = len(seen.live) + seen.stopping if spec.rollout.takes_over else len(seen.live) - len(removed)
    room = spec.replicas + (spec.rollout.surge(spec.replicas) if going else 0) - there
    missing = max(0, min(spec.replicas - len(kept), room))
    pause = _wait(seen.ended, spec.replicas, observed) if missing else None
    buried = _buried(dead, seen.ended, ready=seen.good_ready, replicas=spec.replicas)
    removed += [(p, "it has ended for good") for p in buried]
    actions += [DeletePod(p.name, p.uid, why) for p, why in removed]
    if pause is None:
        groups = free_groups(observed.pods)
        actions += [CreatePod(_why(seen), next(groups)) for _ in range(missing)]
    return Plan(tuple(actions), min((t for t in (wait, pause) if t is not None), default=None))


def _service(state: ServiceState) -> Sequence[CreateService | ApplyService]:
    why = f"the Service is {state.value}"
    match state:
        case ServiceState.MISSING:
            return [CreateService(why)]
        case ServiceState.CHANGED:
            return [ApplyService(why)]
        case _:
            return []


def _surplus(seen: PodView[Workload]) -> list[Pod]:
    """What to take away when there are too many: first what is not ready, without a node, of little worth, new."""
    order = sorted(
        seen.staying, key=lambda p: (p.ready, p.cut_off, p.scheduled, p.worth, -p.created.timestamp(), p.name)
    )
    return order[: max(0, len(order) - seen.spec.replicas)]


def _replaced(seen: PodView[Workload]) -> list[Pod]:
    """Pods that can go now.

    Those of an older spec that do not serve go at once, the others, and those whose node is being drained, as far as
    nobody misses them. After an outage of the API server every pod looks cut off for a while, and all of them serve.
    """
    idle = [p for p in seen.older if not p.ready and not p.cut_off]
    spare = max(0, seen.ready - seen.spec.replicas)
    doubtful = [p for p in seen.older if p.cut_off] + [p for p in seen.leaving if not p.ready]
    return [*idle, *(doubtful if seen.ready >= seen.spec.replicas else ()), *_serving(seen)[:spare]]


def _serving(seen: PodView[Workload]) -> list[Pod]:
    """Pods that serve and are to be replaced: those first whose node waits to be drained."""
    return sorted((p for p in (*seen.leaving, *seen.older) if p.ready), key=lambda p: p.worth)


def _first(seen: PodView[Workload], kept: Sequence[Pod], removed: Set[str]) -> tuple[list[Pod], timedelta | None]:
    """Pods that serve and go before their replacements do, where there is no room for both; and when to look again.

    That is what `maxUnavailable` allows. Pods that drain make room already. The room on a node that is being drained is
    of no use.
    """
    spec, now = seen.spec, seen.observed.now
    spare = seen.ready - sum(p.ready for p in seen.live if p.uid in removed)
    spare -= spec.replicas - spec.rollout.unavailable(spec.replicas)
    serving = [p for p in _serving(seen) if p.uid not in removed]
    if not spec.rollout.surge(spec.replicas):
        return serving[: max(0, spare)], None
    usable = [p for p in serving if not p.leaving]
    if spare <= 0 or not usable:
        return [], None
    unplaced = [p for p in kept if p.failure is not None and p.failure.reason is Reason.UNSCHEDULABLE]
    due = [p.moved + ROOM_PATIENCE for p in unplaced]
    wanted = sum(time <= now for time in due) - seen.stopping
    wait = min((time - now for time in due if time > now), default=None)
    return usable[: max(0, min(spare, wanted))], wait


def _why_gone(pod: Pod, seen: PodView[Workload]) -> str:
    return "its spec or image has changed" if pod in seen.older else f"its node {pod.node} is being drained"


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


def _why(seen: PodView[Workload]) -> str:
    if seen.older:
        return "the spec or the image has changed"
    if seen.leaving:
        return f"node {seen.leaving[0].node} is being drained"
    if seen.ended:
        return f"{seen.ended[-1].name} has ended for good"
    return f"{len(seen.live)} of {seen.spec.replicas} are there"
