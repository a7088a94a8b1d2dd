"""Plans the next actions for an object's pods and Service: a pure function of the spec and of what exists.

It is level-triggered: the same state gives the same plan, and the state that a plan leads to gives an empty one. A
rollout adds up to `maxSurge` pods, and deletes only pods that are not needed to keep `replicas` pods ready. If new pods
find no node, up to `maxUnavailable` ready pods may be missing: old ones are deleted first. A pod on a node that is
being drained is replaced in the same way before it is evicted. Deletions come before creations, so an operator that is
killed in between leaves too few pods, never too many. Pods that take over stored data of their predecessors are created
after those are gone.

The kubelet restarts a container that crashes, with back-off. The operator replaces a pod that has ended for good
(evicted, rejected by its node): the first one immediately, others after increasing waits. The dead pods record how
often that has happened, so they stay until their replacements serve.
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
    """Yield the group numbers that no pod of an object has, from the lowest, without end; `pods` are all its pods. A
    dead pod's number is free unless the pod has been deleted and still exists.
    """
    taken = {pod.group for pod in pods if not pod.dead or pod.stopping}
    return (group for group in map(str, count()) if group not in taken)


ROOM_PATIENCE = timedelta(seconds=60)
"""How long a pod may find no node before an old pod is deleted for it. A cluster autoscaler adds a node in that time.
"""
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=10), timedelta(seconds=300)
ROUNDS_KEPT = 7


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create a pod from the spec of the plan, with this group number."""

    why: str
    group: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod, which drains by itself. `uid` makes sure that it is the observed pod."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class CreateService:
    """Create the Service."""

    why: str


@dataclass(frozen=True, slots=True)
class ApplyService:
    """Write the wanted fields into our existing Service by server-side apply."""

    why: str


Action = CreatePod | DeletePod | CreateService | ApplyService


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in order. `wait`: time after which to plan again, even if nothing has changed by then."""

    actions: tuple[Action, ...]
    wait: timedelta | None = None


def plan(seen: PodView[Workload]) -> Plan:
    """Return the actions that bring the pods closer to the spec; none if nothing is to do, or if it must wait."""
    spec, observed = seen.spec, seen.observed
    actions: list[Action] = [*_service(observed.service)]
    dead = [p for p in observed.pods if p.dead and not p.stopping]
    going = seen.older + seen.leaving

    surplus = _surplus(seen)
    removed = [(p, f"{spec.replicas} are wanted in total") for p in surplus]
    kept = [p for p in seen.staying if p not in surplus]
    removed += [(p, _why_gone(p, seen)) for p in _replaced(seen)]
    first, wait = _first(seen, kept, {p.uid for p, _ in removed})
    removed += [(p, f"{_why_gone(p, seen)}, and its replacement cannot start before it is gone") for p in first]
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
    """Return the good pods beyond `replicas`, without those on nodes that are being drained. Pods that are not ready go
    first (cut-off ones last of these), then those without a node, of the lowest worth, and the newest.
    """
    order = sorted(
        seen.staying, key=lambda p: (p.ready, p.cut_off, p.scheduled, p.worth, -p.created.timestamp(), p.name)
    )
    return order[: max(0, len(order) - seen.spec.replicas)]


def _replaced(seen: PodView[Workload]) -> list[Pod]:
    """Return the pods to replace that can be deleted now.

    Pods of an older spec that do not serve are deleted immediately. The others, and those on a node that is being
    drained, are deleted while enough pods serve. After an outage of the API server all pods look cut off for a while
    but still serve.
    """
    idle = [p for p in seen.older if not p.ready and not p.cut_off]
    spare = max(0, seen.ready - seen.spec.replicas)
    doubtful = [p for p in seen.older if p.cut_off] + [p for p in seen.leaving if not p.ready]
    return [*idle, *(doubtful if seen.ready >= seen.spec.replicas else ()), *_serving(seen)[:spare]]


def _serving(seen: PodView[Workload]) -> list[Pod]:
    """Return the pods that serve and are to be replaced, lowest worth first."""
    return sorted((p for p in (*seen.leaving, *seen.older) if p.ready), key=lambda p: p.worth)


def _first(seen: PodView[Workload], kept: Sequence[Pod], removed: Set[str]) -> tuple[list[Pod], timedelta | None]:
    """Return ready pods to delete before their replacements exist, if both do not fit, and the time until the next
    plan.

    `maxUnavailable` limits them. Draining pods free their room already. Room on a node that is being drained is of no
    use.
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
    """Return how many times all replicas have ended for good, counted by dead pods that still exist."""
    return len(ended) // max(1, replicas)


def _wait(ended: Sequence[Pod], replicas: int, observed: Observed) -> timedelta | None:
    """Return how long dead pods must not be replaced yet; None if they may be."""
    rounds = _rounds(ended, replicas)
    if rounds < 2:
        return None
    pause = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (rounds - 2))
    left = ended[-1].ended + pause - observed.now
    return left if left > timedelta(0) else None


def _buried(dead: Sequence[Pod], ended: Sequence[Pod], *, ready: int, replicas: int) -> list[Pod]:
    """Return the dead pods to delete. Those not of the present spec and image are deleted; of the others (`ended`) all
    if enough pods serve, else the oldest beyond `ROUNDS_KEPT` for each replica.
    """
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
    return f"{len(seen.live)} of {seen.spec.replicas} pods exist"
