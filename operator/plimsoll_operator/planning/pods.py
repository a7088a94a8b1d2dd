"""Reads the pods and the Service of an object as plain records.

A record is read once per event of the API server. What depends on the time is added in each reconcile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from plimsoll_cluster.pod_status import conditions_of, is_unheard
from plimsoll_cluster.resource import Controller
from plimsoll_operator.planning.group_turns import UNLIMITED, Turn
from plimsoll_operator.planning.nodes import Node
from plimsoll_operator.spec.identity import (
    GROUP_LABEL,
    HASH_LABEL,
    INDEX_LABEL,
    KIND,
    LEADER_ANNOTATION,
    OWNER_LABEL,
    POOL_LABEL,
    POOL_UID_LABEL,
    SIZE_LABEL,
    UID_LABEL,
    Object,
    controller_of,
)
from plimsoll_operator.status.name_conflicts import NameConflict
from plimsoll_operator.status.pod_failure import Failure, failure_of, node_failure

LOST_AFTER = timedelta(seconds=60)
LONG_AGO = datetime.min.replace(tzinfo=UTC)
NO_NODES: Mapping[str, Node] = {}


@dataclass(frozen=True, slots=True)
class Pod:
    """One runtime pod.

    `model`: the name of its ModelDeployment or RuntimePool, from its labels; "" if these lack that object's uid, so
    that the Service does not select the pod. `gone_by`: it was deleted, and drains until then at the latest; the
    kubelet has `grace` from the deletion to that time. `lost`: it should have ended long ago, but its node does not
    report that. `dead`: it will never run again, and ended at `ended`. `node` and `address` are "" while it has none.
    `cut_off`: it was ready at its node's last report, and may still serve. `leaving`: its node is being drained.
    `moved`: when it last made progress towards ready, or became unready. `loads_since`: when it began to load, None if
    it does not load. `worth`: the loss if it is deleted; of several, the lowest goes first. `group`: the number of its
    group. `index`: its number in the group, which has `size` pods. `leader`: the address of the group's leader that it
    was created with; "" for a leader.
    """

    name: str
    uid: str
    model: str
    hash: str
    created: datetime
    scheduled: bool
    ready: bool
    gone_by: datetime | None
    dead: bool
    ended: datetime
    failure: Failure | None = None
    node: str = ""
    moved: datetime = LONG_AGO
    loads_since: datetime | None = None
    cut_off: bool = False
    leaving: bool = False
    lost: bool = False
    address: str = ""
    worth: float = 0.0
    group: str = ""
    index: int = 0
    size: int = 1
    leader: str = ""
    grace: timedelta = timedelta()

    @property
    def stopping(self) -> bool:
        """Whether it was deleted."""
        return self.gone_by is not None

    @property
    def revision(self) -> str:
        """The part of its hash that comes from the user's spec."""
        return self.hash.partition("-")[0]

    @property
    def live(self) -> bool:
        """Whether it counts as a replica."""
        return not self.stopping and not self.dead


class ServiceState(Enum):
    """The observed state of a model's Service."""

    MISSING = "missing"
    OURS = "as it should be"
    CHANGED = "not as it should be"
    LEFT_OVER = "left by a deleted object of this name"
    FOREIGN = "of another owner"


@dataclass(frozen=True, slots=True)
class Observed:
    """What a plan is made from in addition to the spec. `lost_names`: served names that the object claims but does
    not own.

    `gave_up`: why the model has no replicas, if it was scaled to zero before a pod of its revision was ready. `turn`:
    whether it may place groups of several pods. `room_takers`: names of pods that may have taken the room for one.
    """

    pods: tuple[Pod, ...]
    service: ServiceState
    now: datetime
    lost_names: tuple[NameConflict, ...] = ()
    gave_up: Failure | None = None
    turn: Turn = UNLIMITED
    room_takers: tuple[str, ...] = ()


def observe_pods(pods: Iterable[Pod], now: datetime, nodes: Mapping[str, Node] = NO_NODES) -> tuple[Pod, ...]:
    """Return the pods with their state at `now`, oldest first; `nodes` are the known nodes."""
    found = (_on(_at(pod, now), nodes.get(pod.node)) for pod in pods)
    return tuple(sorted(found, key=lambda pod: (pod.created, pod.name)))


def lost_in(pods: Iterable[Pod], now: datetime) -> timedelta | None:
    """Return the time until the next deleted pod counts as `lost`; None if there is none."""
    return min((p.gone_by + LOST_AFTER - now for p in pods if p.gone_by is not None and not p.lost), default=None)


@dataclass(frozen=True, slots=True)
class FoundService:
    """A Service with the expected name. `ports` has (name, port, target) of each."""

    owner: Controller | None
    labels: Mapping[str, str]
    selector: Mapping[str, str]
    ports: frozenset[tuple[Any, ...]]


def read_service(item: Object) -> FoundService:
    """Read a Service."""
    owner = controller_of(item)
    return FoundService(
        owner=Controller(owner["kind"], owner["name"], owner["uid"]) if owner else None,
        labels=item["metadata"].get("labels") or {},
        selector=item["spec"].get("selector") or {},
        ports=frozenset((p.get("name"), p["port"], p.get("targetPort")) for p in item["spec"].get("ports", ())),
    )


def observe_service(found: FoundService | None, wanted: Object) -> ServiceState:
    """Return whether the Service exists, is ours and has the wanted fields."""
    if found is None:
        return ServiceState.MISSING
    ours = read_service(wanted)
    assert ours.owner is not None
    if found.owner is None or found.owner.uid != ours.owner.uid:
        same_name = found.owner is not None and (found.owner.kind, found.owner.name) == (KIND, ours.owner.name)
        return ServiceState.LEFT_OVER if same_name else ServiceState.FOREIGN
    same = (
        found.selector == ours.selector
        and all(found.labels.get(key) == value for key, value in ours.labels.items())
        and ours.ports <= found.ports
    )
    return ServiceState.OURS if same else ServiceState.CHANGED


def read_pod(item: Object) -> Pod:
    """Read a pod."""
    meta, status = item["metadata"], item.get("status") or {}
    conditions = conditions_of(item)
    gone_by = meta.get("deletionTimestamp")
    dead = status.get("phase") in ("Failed", "Succeeded")
    labels = meta.get("labels") or {}
    created = _time(meta["creationTimestamp"])
    is_marked = (labels.get(UID_LABEL) or labels.get(POOL_UID_LABEL)) == controller_of(item).get("uid")
    node = str(item["spec"].get("nodeName") or "")
    ready = gone_by is None and not dead and conditions.get("Ready", {}).get("status") == "True"
    cut_off = bool(node) and gone_by is None and not dead and is_unheard(conditions)
    failure = node_failure(node) if cut_off else failure_of(status, conditions)
    placed_at = _transition(conditions, "PodScheduled") or created
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        model=(labels.get(OWNER_LABEL) or labels.get(POOL_LABEL, "")) if is_marked else "",
        hash=labels.get(HASH_LABEL, ""),
        created=created,
        scheduled=bool(node),
        ready=ready,
        gone_by=_time(gone_by) if gone_by is not None else None,
        grace=timedelta(seconds=meta.get("deletionGracePeriodSeconds") or 0),
        dead=dead,
        ended=max([created, *_ends(status, conditions)]),
        failure=failure,
        node=node,
        address=str(status.get("podIP") or ""),
        group=labels.get(GROUP_LABEL, ""),
        index=_number(labels.get(INDEX_LABEL), 0),
        size=_number(labels.get(SIZE_LABEL), 1),
        leader=(meta.get("annotations") or {}).get(LEADER_ANNOTATION, ""),
        cut_off=cut_off,
        moved=max(placed_at, _transition(conditions, "Ready") or created),
        loads_since=placed_at if node and not ready and not dead and failure is None else None,
    )


def _at(pod: Pod, now: datetime) -> Pod:
    """Return the pod with its state at `now`."""
    return replace(pod, lost=True) if pod.gone_by is not None and now > pod.gone_by + LOST_AFTER else pod


def _on(pod: Pod, node: Node | None) -> Pod:
    """Return the pod with its node's state."""
    if node is None:
        return pod
    silent = node.lost and pod.live and not pod.ready
    failure = node_failure(pod.node) if silent else pod.failure
    return replace(pod, leaving=node.cordoned, failure=failure, loads_since=None if silent else pod.loads_since)


def _transition(conditions: Mapping[str, Any], kind: str) -> datetime | None:
    stamp = conditions.get(kind, {}).get("lastTransitionTime")
    return _time(stamp) if stamp else None


def _ends(status: Object, conditions: Mapping[str, Any]) -> list[datetime]:
    """Return the times at which a dead pod may have ended; the latest is accurate enough."""
    stamps = [c.get("lastTransitionTime") for c in conditions.values()]
    stamps += [
        ((c.get("state") or {}).get("terminated") or {}).get("finishedAt")
        for c in status.get("containerStatuses") or ()
    ]
    return [_time(stamp) for stamp in stamps if stamp]


def _number(label: str | None, default: int) -> int:
    """Return the number in a label, which a user may have changed or removed."""
    return int(label) if label is not None and label.isdecimal() else default


def _time(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)
