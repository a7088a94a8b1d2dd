"""A simulated cluster: pods of one ModelDeployment, and events that may happen to them.

It keeps pods as the API server's JSON, so that plans are made from what the operator reads in a real cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from operator_support.objects import EPOCH, UID, Json, stamp

from plimsoll_operator.build.pod_revision import Fit, Fits
from plimsoll_operator.planning.actions import Action, ApplyService, CreatePod, CreateService, DeletePod
from plimsoll_operator.planning.nodes import Node
from plimsoll_operator.planning.pods import Observed, ServiceState, observe_pods, read_pod
from plimsoll_operator.spec.identity import (
    API_VERSION,
    CONTAINER,
    GROUP_LABEL,
    HASH_LABEL,
    INDEX_LABEL,
    KIND,
    LEADER_ANNOTATION,
    SIZE_LABEL,
    UID_LABEL,
)

DRAIN = timedelta(seconds=45)


def fits_of(present: str) -> Fits:
    """Return a comparison of labels that stand for specs; "new@other" is the spec "new" with another image."""

    def fit(label: str) -> Fit:
        if label == present:
            return Fit.CURRENT
        return Fit.OUTDATED if label.partition("@")[0] == present else Fit.OLDER

    return fit


class State(Enum):
    """The state of a pod."""

    UNSCHEDULED = "no node yet"
    UNSCHEDULABLE = "no node fits"
    LOADING = "loads its model"
    READY = "serves"
    CUT_OFF = "served until its node ceased to answer"
    CRASHING = "its container ends and is started again"
    DEAD = "evicted"
    DONE = "its container has ended well, and is not started again"


@dataclass
class SimulatedPod:
    """One pod and its true state."""

    name: str
    hash: str
    state: State
    created: datetime
    owner: str = UID
    gone_by: datetime | None = None
    ended: datetime | None = None
    node: str = "n1"
    group: str = ""
    index: int = 0
    size: int = 1
    leader: str = ""

    @property
    def address(self) -> str:
        """Its address, "" while it has no node."""
        return f"10-{self.name}" if self.state not in (State.UNSCHEDULED, State.UNSCHEDULABLE) else ""

    @property
    def live(self) -> bool:
        return self.gone_by is None and self.state not in (State.DEAD, State.DONE)

    @property
    def ready(self) -> bool:
        return self.live and self.state is State.READY

    @property
    def may_serve(self) -> bool:
        """Whether it serves, or did at its node's last report."""
        return self.live and self.state in (State.READY, State.CUT_OFF)

    @property
    def holds_room(self) -> bool:
        """Whether it takes up a place on its node."""
        return self.state not in (State.UNSCHEDULED, State.UNSCHEDULABLE, State.DEAD, State.DONE)

    def become(self, state: State, now: datetime) -> None:
        """Set its state."""
        self.state = state
        if state in (State.DEAD, State.DONE):
            self.ended = now

    def json(self) -> Json:
        owner = {"apiVersion": API_VERSION, "kind": KIND, "name": "gemma", "uid": self.owner, "controller": True}
        meta: Json = {
            "name": self.name,
            "namespace": "team",
            "uid": f"uid-{self.name}",
            "labels": self._labels(),
            "creationTimestamp": stamp(self.created),
            "ownerReferences": [owner] if self.owner else [],
            "annotations": {LEADER_ANNOTATION: self.leader} if self.leader else {},
        }
        if self.gone_by is not None:
            meta["deletionTimestamp"] = stamp(self.gone_by)
        status = self._status() | ({"podIP": self.address} if self.address else {})
        return {"metadata": meta, "spec": {"nodeName": self.node} if self.address else {}, "status": status}

    def _labels(self) -> Json:
        size = {SIZE_LABEL: str(self.size)} if self.size > 1 else {}
        return {
            HASH_LABEL: self.hash,
            GROUP_LABEL: self.group,
            INDEX_LABEL: str(self.index),
            UID_LABEL: self.owner,
        } | size

    def _status(self) -> Json:
        ready = {"type": "Ready", "status": str(self.state is State.READY)}
        match self.state:
            case State.UNSCHEDULED:
                return {"phase": "Pending"}
            case State.UNSCHEDULABLE:
                why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
                return {"phase": "Pending", "conditions": [why]}
            case State.CRASHING:
                state = {"waiting": {"reason": "CrashLoopBackOff"}}
                last = {"terminated": {"exitCode": 4, "message": "model-invalid: no such tensor"}}
                container = {"name": CONTAINER, "ready": False, "restartCount": 3, "state": state, "lastState": last}
                return {"phase": "Running", "conditions": [ready], "containerStatuses": [container]}
            case State.DEAD | State.DONE:
                ready["lastTransitionTime"] = stamp(self.ended or self.created)
                failed = {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}
                return {**(failed if self.state is State.DEAD else {"phase": "Succeeded"}), "conditions": [ready]}
            case State.CUT_OFF:
                well = {"type": "ContainersReady", "status": "True"}
                return {"phase": "Running", "conditions": [ready, well]}
            case State.LOADING | State.READY:
                return {"phase": "Running", "conditions": [ready]}


@dataclass
class World:
    """The pods with one object's labels, and its Service."""

    pods: list[SimulatedPod] = field(default_factory=list)
    service: ServiceState = ServiceState.MISSING
    now: datetime = EPOCH
    nodes: dict[str, Node] = field(default_factory=dict)
    slots: int | None = None
    """Number of pods that fit on all open nodes together; None for any number."""
    size: int = 1
    """Pods of a replica."""
    _made: int = 0

    def observed(self) -> Observed:
        """Return what the operator observes."""
        found = observe_pods([read_pod(p.json()) for p in self.ours()], self.now, self.nodes)
        return Observed(found, self.service, self.now)

    def ours(self) -> list[SimulatedPod]:
        return [p for p in self.pods if p.owner == UID]

    def groups(self) -> list[str]:
        """Return the groups of pods that have not ended."""
        there = [p for p in self.ours() if p.gone_by is not None or p.state not in (State.DEAD, State.DONE)]
        return [p.group for p in there]

    @property
    def live(self) -> int:
        return sum(p.live for p in self.ours())

    @property
    def ready(self) -> int:
        return sum(p.ready for p in self.ours())

    @property
    def may_serve(self) -> int:
        return sum(p.may_serve for p in self.ours())

    def apply(self, actions: Iterable[Action], pod_hash: str) -> None:
        """Execute actions, like the API server."""
        for action in actions:
            match action:
                case CreatePod():
                    self._check_new(action)
                    self._made += 1
                    self.pods.append(self._new(pod_hash, action))
                case DeletePod(name, uid, _, _):
                    (pod,) = [p for p in self.pods if p.name == name]
                    assert pod.json()["metadata"]["uid"] == uid
                    assert pod.owner == UID, "a pod of another owner"
                    self._delete(pod)
                case CreateService():
                    assert self.service is ServiceState.MISSING
                    self.service = ServiceState.OURS
                case ApplyService():
                    assert self.service is ServiceState.CHANGED
                    self.service = ServiceState.OURS

    def evict(self, least: int) -> bool:
        """Evict a pod from a node that is being drained, if `least` pods stay ready. Return whether there was one."""
        for pod in self.ours():
            cordoned = pod.node in self.nodes and self.nodes[pod.node].cordoned
            if pod.live and cordoned and (not pod.ready or self.ready > least):
                self._delete(pod)
                return True
        return False

    def _check_new(self, action: CreatePod) -> None:
        """Check that a leader's group is new, and that another pod's leader is there and has this address."""
        if action.index == 0:
            assert action.group not in self.groups(), f"group {action.group} is there already"
            assert not action.leader
            return
        there = [p for p in self.ours() if p.live and p.group == action.group]
        assert action.index not in {p.index for p in there}, f"pod {action.index} of {action.group} is there already"
        assert [p.address for p in there if p.index == 0] == [action.leader] != [""]

    def _new(self, pod_hash: str, action: CreatePod) -> SimulatedPod:
        return SimulatedPod(
            f"made-{self._made}",
            pod_hash,
            State.UNSCHEDULED,
            self.now,
            group=action.group,
            index=action.index,
            size=self.size,
            leader=action.leader,
        )

    def proceed(self, pod: SimulatedPod) -> None:
        """Let the next step of a pod succeed."""
        if pod.gone_by is not None:
            self.pods.remove(pod)
        elif pod.state in (State.UNSCHEDULED, State.UNSCHEDULABLE):
            self._place(pod)
        elif pod.state in (State.LOADING, State.CRASHING, State.CUT_OFF):
            pod.state = State.READY

    def _place(self, pod: SimulatedPod) -> None:
        """Schedule a pod."""
        open_nodes = [name for name, node in self.nodes.items() if not node.cordoned] if self.nodes else ["n1"]
        used = sum(p.holds_room and p.node in open_nodes for p in self.ours())
        full = not open_nodes or (self.slots is not None and used >= self.slots)
        pod.state = State.UNSCHEDULABLE if full else State.LOADING
        pod.node = pod.node if full else open_nodes[used % len(open_nodes)]

    def _delete(self, pod: SimulatedPod) -> None:
        """Delete a pod: it is gone immediately if it has no node or has ended, and drains otherwise."""
        assert pod.gone_by is None, "deleted twice"
        if pod.state in (State.UNSCHEDULED, State.UNSCHEDULABLE, State.DEAD, State.DONE):
            self.pods.remove(pod)
        else:
            pod.gone_by = self.now + DRAIN
