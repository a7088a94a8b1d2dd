"""Describes the groups of a model whose replicas have several pods, for its status and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.planning.pod_view import PodView
from plimsoll_operator.planning.pods import Pod
from plimsoll_operator.planning.units import Unit
from plimsoll_operator.spec.workload import Workload
from plimsoll_operator.status.conditions import cut
from plimsoll_operator.status.reasons import Reason

GROUPS_LIMIT = 64
MESSAGE_LIMIT = 512
NO_WORDS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Leader:
    """The pod of a group's leader: its uid, name and address."""

    uid: str
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group: its number, its `pods`, and how many are ready. `reason` and `message`: why it does not serve; None
    and "" if it does.
    """

    group: str
    pods: int
    ready: int
    nodes: tuple[str, ...]
    reason: Reason | None = None
    message: str = ""

    def fields(self) -> dict[str, Any]:
        """Return it as an item of `status.groups`."""
        found = {"group": self.group, "pods": self.pods, "readyPods": self.ready, "nodes": list(self.nodes)}
        return found if self.reason is None else {**found, "reason": self.reason.value, "message": self.message}


def groups_of(
    seen: PodView[Workload], before: Mapping[str, Any], words: Mapping[str, str] = NO_WORDS
) -> tuple[GroupStatus, ...]:
    """Return the groups of the view; none if replicas have one pod. `before`: the last status. `words`: why leaders do
    not serve, by the uid of their pod.
    """
    served = _served(before)
    return tuple(_described(unit, words, has_served=unit.group in served) for unit in _shown(seen))


def leaders_of(seen: PodView[Workload]) -> tuple[Leader, ...]:
    """Return the leaders that know why their group does not serve: those of `groups_of` that have a node and an
    address.
    """
    leaders = (_leader(unit) for unit in _shown(seen) if not unit.ready)
    return tuple(Leader(pod.uid, pod.name, pod.address) for pod in leaders if pod and pod.node and pod.address)


def _shown(seen: PodView[Workload]) -> Sequence[Unit]:
    """Return the groups that the status shows."""
    if seen.spec.pods_per_replica == 1:
        return ()
    return sorted(seen.live, key=lambda unit: (len(unit.group), unit.group))[:GROUPS_LIMIT]


def _leader(unit: Unit) -> Pod | None:
    return next((pod for pod in unit.pods if pod.index == 0), None)


def group_events(groups: Sequence[GroupStatus], before: Mapping[str, Any]) -> list[tuple[Reason, str, bool]]:
    """Return the events of groups since the last status, as reason, message and whether it is a warning."""
    known = {each["group"]: each.get("reason") for each in before.get("groups") or ()}
    events = []
    for each in groups:
        if each.reason is None and (each.group not in known or known[each.group] is not None):
            nodes = ", ".join(each.nodes)
            events.append((Reason.GROUP_FORMED, f"group {each.group} serves: {each.pods} pods on {nodes}", False))
        if each.reason is Reason.GROUP_LOST and known.get(each.group) != Reason.GROUP_LOST:
            events.append((Reason.GROUP_LOST, f"group {each.group} does not serve any more: {each.message}", True))
    return events


def lost_with_their_leaders(seen: PodView[Workload], before: Mapping[str, Any]) -> list[str]:
    """Return the messages of events of groups that have served and whose leader's pod is gone."""
    lost = {unit.group for unit in seen.units if unit.leaderless} & _served(before)
    return [f"group {group} does not serve any more: the pod of its leader is gone" for group in sorted(lost)]


def _served(before: Mapping[str, Any]) -> set[str]:
    """Return the groups that have served, according to the last status."""
    groups = before.get("groups") or ()
    return {each["group"] for each in groups if each.get("reason") in (None, Reason.GROUP_LOST)}


def _described(unit: Unit, words: Mapping[str, str], *, has_served: bool) -> GroupStatus:
    nodes = tuple(dict.fromkeys(pod.node for pod in unit.pods if pod.node))
    ready = sum(pod.ready for pod in unit.pods)
    if unit.ready:
        return GroupStatus(unit.group, unit.size, ready, nodes)
    reason = Reason.GROUP_LOST if has_served else Reason.GROUP_FORMING
    if not has_served and unit.failure is not None and unit.failure.reason is Reason.UNSCHEDULABLE:
        reason = Reason.GROUP_NOT_PLACED
    return GroupStatus(unit.group, unit.size, ready, nodes, reason, cut(_why(unit, words), MESSAGE_LIMIT))


def _why(unit: Unit, words: Mapping[str, str]) -> str:
    """Return why a group does not serve: the failure of a pod, missing pods, and what its leader says."""
    for pod in unit.pods:
        if not pod.ready and pod.failure is not None:
            return f"{pod.name}: {pod.failure.message}"
    present = {pod.index for pod in unit.pods}
    missing = [str(index) for index in range(unit.size) if index not in present]
    reasons = []
    if missing:
        reasons.append(f"pod{'s' if len(missing) > 1 else ''} {', '.join(missing)} of {unit.size} not created yet")
    if (leader := _leader(unit)) is not None and (said := words.get(leader.uid)):
        reasons.append(f"{leader.name}: {said}")
    if reasons:
        return "; ".join(reasons)
    return f"waits for {', '.join(pod.name for pod in unit.pods if not pod.ready)}"
