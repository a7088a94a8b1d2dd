"""Which groups of several pods are being placed, and which are given back because not all of their pods get a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from plimsoll_operator.planning.actions import Action, CreatePod, DeletePod, is_new_unit
from plimsoll_operator.planning.group_turns import UNLIMITED, GroupTurns, Turn
from plimsoll_operator.planning.nodes import Node
from plimsoll_operator.planning.pod_view import PodView
from plimsoll_operator.planning.pods import NO_NODES, Pod
from plimsoll_operator.planning.units import Unit, units_of
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.status.reasons import Reason

PLACEMENT_PATIENCE = timedelta(seconds=60)
"""How long a pod of a group may find no node. A cluster autoscaler adds a node in that time."""
NAMED_TAKERS = 3
CROWDED_PATIENCE = timedelta(seconds=3)
"""`PLACEMENT_PATIENCE` while a group that was never tried waits, counted from the scheduler's first refusal."""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Groups to give back, and why; `wait`: time until the next one is due."""

    units: tuple[Unit, ...]
    words: str
    wait: timedelta | None


def is_being_placed(unit: Unit, now: datetime) -> bool:
    """Return whether a group is new and not all of its pods have a node. A group that lost a pod later is not new."""
    if not unit.live or unit.size == 1 or unit.scheduled:
        return False
    return (_latest(unit) if unit.whole else now) - unit.pods[0].created <= PLACEMENT_PATIENCE


def given_back(units: Sequence[Unit], turn: Turn, now: datetime) -> GivenBack:
    """Return the live groups to give back now. Without turns there are none: another scheduler decides."""
    if not turn.limited:
        return GivenBack((), "", None)
    due = [(unit, _due(unit, turn, now)) for unit in units if unit.live and unit.size > 1 and not unit.scheduled]
    ends = [(unit, time) for unit, time in due if time is not None]
    over = tuple(unit for unit, time in ends if time <= now)
    wait = min((time - now for _, time in ends if time > now), default=None)
    return GivenBack(over, _words(over[0], turn) if over else "", wait)


def _due(unit: Unit, turn: Turn, now: datetime) -> datetime | None:
    """Return when a group is given back; None if it only lacks pods that can be created."""
    leader, lacking = unit.pods[0], [pod for pod in unit.pods if not pod.scheduled]
    if not lacking:
        if not leader.address:
            return leader.moved + PLACEMENT_PATIENCE
        return None if turn.rejected_at is None else max(leader.moved, turn.rejected_at) + PLACEMENT_PATIENCE
    refused = [pod.moved for pod in lacking if _is_refused(pod)]
    if turn.crowded and refused and is_being_placed(unit, now):
        return max(refused) + CROWDED_PATIENCE
    return max(pod.moved for pod in lacking) + PLACEMENT_PATIENCE


def _latest(unit: Unit) -> datetime:
    return max(pod.created for pod in unit.pods)


def _is_refused(pod: Pod) -> bool:
    return pod.failure is not None and pod.failure.reason is Reason.UNSCHEDULABLE


def _words(unit: Unit, turn: Turn) -> str:
    """Return which pod has no node, with the scheduler's words, or why pods could not be created. The name of a pod
    differs at each try.
    """
    lacking = [pod for pod in unit.pods if not pod.scheduled]
    if not lacking and unit.pods[0].address:
        return f"{len(unit.pods)} of {unit.size} pods could be created: {turn.words}"
    if not lacking:
        return f"pod {unit.name} ({unit.pods[0].index} of {unit.size}) got no address on node {unit.node}"
    pod = next((pod for pod in lacking if _is_refused(pod)), lacking[0])
    said = pod.failure.message if pod.failure is not None else "the scheduler has not answered"
    return f"pod {pod.name} ({pod.index} of {unit.size}) found no node: {said}"


class Planned(Protocol):
    """The fields of `Plan` that turns depend on."""

    @property
    def actions(self) -> Sequence[Action]:
        """As in `Plan`."""

    @property
    def waits_for_turn(self) -> bool:
        """As in `Plan`."""

    @property
    def given_back(self) -> str:
        """As in `Plan`."""


def room_takers(pods: Iterable[Pod], since: datetime | None) -> tuple[str, ...]:
    """Return the names of some single pods among `pods` that got a node after `since`. They need no turn, and may have
    taken the room that a group waits for.
    """
    if since is None:
        return ()
    found = [pod for pod in pods if pod.size == 1 and pod.live and pod.scheduled and pod.created > since]
    return tuple(pod.name for pod in sorted(found, key=lambda pod: pod.created)[:NAMED_TAKERS])


def begin_turn(turns: GroupTurns, spec: Spec, pods: Sequence[Pod], now: datetime) -> tuple[Turn, Sequence[ObjectKey]]:
    """Return the turn of a model with these pods, and the objects that need a reconcile because of this."""
    if spec.pods_per_replica == 1:
        return UNLIMITED, turns.end(spec.key, now)
    return turns.turn(spec.key, spec.created, placing=_places(pods, now), now=now), ()


def end_turn(
    turns: GroupTurns,
    seen: PodView[Spec],
    planned: Planned,
    rejected: str | None = None,
    nodes: Mapping[str, Node] = NO_NODES,
) -> Sequence[ObjectKey]:
    """Store what the plan for a model does with its turn. `rejected`: why the API server rejected a pod of it. `nodes`:
    the known ones. Return the objects that need a reconcile because of this.
    """
    spec, now = seen.spec, seen.observed.now
    gone = {action.uid for action in planned.actions if isinstance(action, DeletePod)}
    back, makes = planned.given_back or rejected or "", any(map(is_new_unit, planned.actions))
    room = turns.make_room(now) if gone and not back else ()
    if spec.pods_per_replica == 1:
        return room
    if seen.placed and not makes and not back:
        return [*turns.end(spec.key, now), *room]
    placing = makes or _places([pod for pod in seen.observed.pods if pod.uid not in gone], now)
    since = seen.observed.turn.rejected_at
    if rejected is not None:
        since = since or now
    elif planned.given_back or any(isinstance(action, CreatePod) for action in planned.actions):
        since = None
    leaders = [pod for pod in seen.observed.pods if pod.uid in gone and pod.index == 0] if back else []
    woken = turns.note(
        spec.key,
        spec.created,
        now,
        placing=placing,
        waits=planned.waits_for_turn,
        given_back=back,
        place=_place(spec, leaders, nodes),
        rejected_at=since,
    )
    return [*woken, *room]


def _place(spec: Spec, leaders: Sequence[Pod], nodes: Mapping[str, Node]) -> str:
    """Return the value of `topologyKey` on the node of the first leader, "" for none."""
    if spec.parallel is None or spec.parallel.topology_key is None or not leaders:
        return ""
    node = nodes.get(leaders[0].node)
    return "" if node is None else node.labels.get(spec.parallel.topology_key, "")


def _places(pods: Sequence[Pod], now: datetime) -> bool:
    """Return whether a group of these pods is being placed."""
    return any(is_being_placed(unit, now) for unit in units_of(pods))
