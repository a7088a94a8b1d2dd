"""Plans the next actions for an object's pods and Service: a pure function of the spec and of what exists.

It is level-triggered: the same state gives the same plan, and the state that a plan leads to gives an empty one. A
rollout adds up to `maxSurge` pods, and deletes only pods that are not needed to keep `replicas` pods ready. If new pods
find no node, up to `maxUnavailable` ready pods may be missing: old ones are deleted first. A pod on a node that is
being drained is replaced in the same way before it is evicted. If no pod may be added, the drain evicts it instead, as
the PodDisruptionBudget allows: pods that the operator deleted at the same time would be missing too. Deletions come
before creations, so an operator that is killed in between leaves too few pods, never too many. Pods that take over
stored data of their predecessors are created after those are gone.

A replica is a unit of one or several pods, its group. Of a group the leader is created first, and the other pods when
it has an address. They are deleted together: all of them drain until the leader has ended. A pod other than the leader
is replaced alone. `group_turns.py` says when a group is created, and when one that gets no nodes is deleted.

The kubelet restarts a container that crashes, with back-off. The operator replaces a pod that has ended for good
(evicted, rejected by its node): the first one immediately, others after increasing waits. The dead pods record how
often that has happened, so they stay until their replacements serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from datetime import datetime, timedelta
from itertools import count, islice

from plimsoll_operator.planning.actions import Action, ApplyService, CreatePod, CreateService, DeletePod, Plan
from plimsoll_operator.planning.group_placement import GivenBack, given_back, is_being_placed
from plimsoll_operator.planning.pod_view import PodView
from plimsoll_operator.planning.pods import Observed, Pod, ServiceState
from plimsoll_operator.planning.units import Unit
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
QUICK_GRACE = 1
TURN_CHECK = timedelta(seconds=30)
"""Interval of reconciles of an object whose group waits for its turn, in addition to those at changes."""


def plan(seen: PodView[Workload]) -> Plan:
    """Return the actions that bring the pods closer to the spec; none if nothing is to do, or if it must wait."""
    spec, observed, turn = seen.spec, seen.observed, seen.observed.turn
    actions: list[Action] = [*_service(observed.service)]
    back = given_back(seen.units, turn, observed.now)
    dead = [u for u in seen.units if u.dead and not u.stopping]
    going = seen.older + seen.leaving

    surplus = [u for u in _surplus(seen) if u not in back.units]
    removed = [(u, f"{spec.replicas} are wanted in total") for u in surplus]
    kept = [u for u in seen.staying if u not in surplus and u not in back.units]
    removed += [(u, _why_gone(u, seen)) for u in _replaced(seen) if u not in back.units]
    first, wait = _first(seen, kept, {u.uid for u, _ in removed})
    removed += [(u, f"{_why_gone(u, seen)}, and its replacement cannot start before it is gone") for u in first]
    one_by_one = spec.rollout.takes_over or _lacks_room(seen)
    there = len(seen.live) + seen.stopping if one_by_one else len(seen.live) - len(removed) - len(back.units)
    room = spec.replicas + (_surge(seen) if going else 0) - there
    wanted = max(0, min(spec.replicas - len(kept), room))
    missing = 0 if back.units else _allowed(seen, wanted)  # A group that was given back waits before its next try.
    members = _missing_members(seen, kept)
    pause = _wait(seen.ended, spec.replicas, observed) if missing or members else None
    buried = _buried(dead, seen.ended, ready=seen.good_ready, replicas=spec.replicas)
    removed += [(u, "it has ended for good") for u in buried]
    removed += [(u, "the leader of its group is gone") for u in seen.units if u.leaderless]
    actions += _give_back(back, observed.now)
    actions += [DeletePod(pod.name, pod.uid, why) for unit, why in removed for pod in unit.pods]
    actions += _strays(kept)
    if pause is None:
        actions += members
        actions += [
            CreatePod(_why(seen), group, avoid=turn.avoid) for group in islice(free_groups(observed.pods), missing)
        ]
    turn_in = (turn.retry_in or TURN_CHECK) if missing < wanted else None
    waits = (wait, pause, back.wait, turn_in)
    return Plan(
        tuple(actions),
        min((t for t in waits if t is not None), default=None),
        waits_for_turn=missing < wanted,
        given_back=back.words,
    )


def _give_back(back: GivenBack, now: datetime) -> list[DeletePod]:
    """Return the deletions of groups that got no nodes. A new one has no requests, and ends at once to make room."""
    why = f"not all pods of its group got a node: {back.words}"
    return [
        DeletePod(pod.name, pod.uid, why, QUICK_GRACE if is_being_placed(unit, now) else None)
        for unit in back.units
        for pod in unit.pods
    ]


def _allowed(seen: PodView[Workload], wanted: int) -> int:
    """Return how many of the wanted units may be created now: of groups, one in the object's turn, and none while
    another one is being placed.
    """
    turn, now = seen.observed.turn, seen.observed.now
    if seen.spec.pods_per_replica == 1 or not turn.limited:
        return wanted
    if not turn.may_place or any(is_being_placed(u, now) for u in seen.units):
        return 0
    return min(wanted, 1)


def _lacks_room(seen: PodView[Workload]) -> bool:
    """Return whether a group was given back lately, so that an old one must be gone before a new one is created. Not if
    none may be missing.
    """
    spec, turn = seen.spec, seen.observed.turn
    was_given_back = turn.tries > 0 and turn.rejected_at is None
    return was_given_back and spec.pods_per_replica > 1 and spec.rollout.unavailable(spec.replicas) > 0


def _surge(seen: PodView[Workload]) -> int:
    return 0 if _lacks_room(seen) else seen.spec.rollout.surge(seen.spec.replicas)


def _service(state: ServiceState) -> Sequence[CreateService | ApplyService]:
    why = f"the Service is {state.value}"
    match state:
        case ServiceState.MISSING:
            return [CreateService(why)]
        case ServiceState.CHANGED:
            return [ApplyService(why)]
        case _:
            return []


def _missing_members(seen: PodView[Workload], kept: Sequence[Unit]) -> list[CreatePod]:
    """Return the creations of pods that units to keep lack, whose leaders have an address. The leader lets a new member
    join when the one before has gone.
    """
    return [
        CreatePod(f"its group has {len(unit.pods)} of {unit.size} pods", unit.group, index, unit.pods[0].address)
        for unit in kept
        if unit in seen.current and not unit.whole and unit.pods[0].address
        for index in range(unit.size)
        if all(pod.index != index for pod in unit.pods)
    ]


def _strays(kept: Sequence[Unit]) -> list[DeletePod]:
    """Return the deletions of pods that were created for another address of their leader than its present one, for
    example before its node was started again.
    """
    return [
        DeletePod(pod.name, pod.uid, f"its leader has another address than {pod.leader}")
        for unit in kept
        for pod in unit.pods
        if pod.leader and unit.pods[0].address not in ("", pod.leader)
    ]


def _surplus(seen: PodView[Workload]) -> list[Unit]:
    """Return the good units beyond `replicas`, without those on nodes that are being drained. Units that are not ready
    go first (cut-off ones last of these), then those without a node, of the lowest worth, and the newest.
    """
    order = sorted(
        seen.staying, key=lambda u: (u.ready, u.cut_off, u.scheduled, u.worth, -u.created.timestamp(), u.name)
    )
    return order[: max(0, len(order) - seen.spec.replicas)]


def _replaced(seen: PodView[Workload]) -> list[Unit]:
    """Return the units to replace that can be deleted now.

    Units of an older spec that do not serve are deleted immediately, and so are groups that a drain has taken a pod
    from: their other pods have to leave too. The others, and those on a node that is being drained, are deleted while
    enough units serve. After an outage of the API server all pods look cut off for a while but still serve.
    """
    idle = [u for u in seen.older if not u.ready and not u.cut_off]
    idle += [u for u in seen.leaving if not u.whole and u not in idle]
    spare = max(0, seen.ready - seen.spec.replicas)
    doubtful = [u for u in seen.older if u.cut_off] + [u for u in seen.leaving if not u.ready]
    return [*idle, *(doubtful if seen.ready >= seen.spec.replicas else ()), *_serving(seen)[:spare]]


def _serving(seen: PodView[Workload]) -> list[Unit]:
    """Return the units that serve and are to be replaced, lowest worth first."""
    return sorted((u for u in (*seen.leaving, *seen.older) if u.ready), key=lambda u: u.worth)


def _first(seen: PodView[Workload], kept: Sequence[Unit], removed: Set[str]) -> tuple[list[Unit], timedelta | None]:
    """Return ready units to delete before their replacements exist, if both do not fit, and the time until the next
    plan.

    `maxUnavailable` limits them. Draining units free their room already. Room on a node that is being drained is of no
    use.
    """
    spec, now = seen.spec, seen.observed.now
    spare = seen.ready - sum(u.ready for u in seen.live if u.uid in removed)
    spare -= spec.replicas - spec.rollout.unavailable(spec.replicas)
    serving = [u for u in _serving(seen) if u.uid not in removed]
    if not _surge(seen):
        return [u for u in serving if u in seen.older][: max(0, spare)], None
    usable = [u for u in serving if not u.leaving]
    if spare <= 0 or not usable:
        return [], None
    unplaced = [u for u in kept if u.failure is not None and u.failure.reason is Reason.UNSCHEDULABLE]
    due = [u.moved + ROOM_PATIENCE for u in unplaced]
    wanted = sum(time <= now for time in due) - seen.stopping
    wait = min((time - now for time in due if time > now), default=None)
    return usable[: max(0, min(spare, wanted))], wait


def _why_gone(unit: Unit, seen: PodView[Workload]) -> str:
    return "its spec or image has changed" if unit in seen.older else f"its node {unit.node} is being drained"


def _rounds(ended: Sequence[Unit], replicas: int) -> int:
    """Return how many times all replicas have ended for good, counted by dead units that still exist."""
    return len(ended) // max(1, replicas)


def _wait(ended: Sequence[Unit], replicas: int, observed: Observed) -> timedelta | None:
    """Return how long dead units must not be replaced yet; None if they may be."""
    rounds = _rounds(ended, replicas)
    if rounds < 2:
        return None
    pause = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (rounds - 2))
    left = ended[-1].ended + pause - observed.now
    return left if left > timedelta(0) else None


def _buried(dead: Sequence[Unit], ended: Sequence[Unit], *, ready: int, replicas: int) -> list[Unit]:
    """Return the dead units to delete. Those not of the present spec and image are deleted; of the others (`ended`) all
    if enough units serve, else the oldest beyond `ROUNDS_KEPT` for each replica.
    """
    older = [u for u in dead if u not in ended]
    kept = 0 if ready >= replicas else ROUNDS_KEPT * max(1, replicas)
    return older + list(ended[: max(0, len(ended) - kept)])


def _why(seen: PodView[Workload]) -> str:
    if seen.older:
        return "the spec or the image has changed"
    if seen.leaving:
        return f"node {seen.leaving[0].node} is being drained"
    if seen.ended:
        return f"{seen.ended[-1].name} has ended for good"
    noun = "pods" if seen.spec.pods_per_replica == 1 else "groups"
    return f"{len(seen.live)} of {seen.spec.replicas} {noun} exist"
