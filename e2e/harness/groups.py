"""Groups: replicas of a ModelDeployment with `spec.parallel`, each of several pods."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from harness.kube import OWNED, Kube, Object, is_ready
from harness.waiting import until

GROUP, INDEX, HASH = "plimsoll.dev/group", "plimsoll.dev/index", "plimsoll.dev/pod-hash"
HOLD = {"plimsoll.dev/hold-requests": "true"}
"""Annotation of a model whose requests wait while it has no ready replica."""
ENDED = ("Failed", "Succeeded")
FORMED_SECONDS = 300
JOINED = re.compile(r"^(\S+) .*\bmember \d+ \(.*\) has joined from ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Member:
    """A pod of a group. `stopping`: it is deleted, but may still run."""

    name: str
    uid: str
    group: str
    index: int
    hash: str
    node: str
    address: str
    ready: bool
    stopping: bool


def apart(*, required: bool = True) -> Object:
    """Return fields of a pod template that keep the pods of a group on different nodes; unless `required`, only if
    there is room.
    """
    term = {
        "labelSelector": {"matchLabels": {"app.kubernetes.io/managed-by": "plimsoll-operator"}},
        "matchLabelKeys": [OWNED, GROUP],
        "topologyKey": "kubernetes.io/hostname",
    }
    kind, terms = ("required", [term]) if required else ("preferred", [{"weight": 100, "podAffinityTerm": term}])
    return {"affinity": {"podAntiAffinity": {f"{kind}DuringSchedulingIgnoredDuringExecution": terms}}}


def members(kube: Kube, name: str) -> list[Member]:
    """Return the pods of a model's groups by group and index, including terminating ones, without those that ended."""
    found = [_member(pod) for pod in kube.pods(name) if pod["status"].get("phase") not in ENDED]
    return sorted(found, key=lambda member: (member.group, member.index, member.stopping))


def _member(pod: Object) -> Member:
    meta, labels = pod["metadata"], pod["metadata"]["labels"]
    return Member(
        name=meta["name"],
        uid=meta["uid"],
        group=labels[GROUP],
        index=int(labels[INDEX]),
        hash=labels[HASH],
        node=pod["spec"].get("nodeName", ""),
        address=pod["status"].get("podIP", ""),
        ready=is_ready(pod),
        stopping="deletionTimestamp" in meta,
    )


def live(kube: Kube, name: str) -> list[Member]:
    """Return the members that are not terminating, by group and index."""
    return [member for member in members(kube, name) if not member.stopping]


def only_group(kube: Kube, name: str) -> tuple[Member, ...]:
    """Return the members of a model's only group, the leader first."""
    found = live(kube, name)
    assert [member.index for member in found] == list(range(len(found))), found
    assert len({member.group for member in found}) == 1, found
    return tuple(found)


def wait_formed(kube: Kube, name: str, groups: int = 1, pods: int = 2, *, timeout: float = FORMED_SECONDS) -> None:
    """Wait until the model has exactly this number of groups, all ready, and is not Progressing."""
    kube.wait_settled(name, groups * pods, timeout=timeout)
    found = Counter(member.group for member in members(kube, name))
    assert sorted(found.values()) == [pods] * groups, kube.describe(name)


def wait_restarted(kube: Kube, name: str, member: Member, *, timeout: float = FORMED_SECONDS) -> None:
    """Wait until the container of a member has restarted and its whole group, the model's only one, is ready."""

    def look() -> bool:
        restarted = kube.restarts(member.name)[member.name] > 0
        return restarted and all(each.ready for each in live(kube, name))

    until(f"{member.name} restarted", look, timeout=timeout, state=lambda: kube.describe(name))


def joined_at(log: str) -> float:
    """Return the time (seconds since 1970) of the last worker's join, from the leader's log with timestamps."""
    *_, last = JOINED.finditer(log)
    return datetime.fromisoformat(f"{last[1][:26]}+00:00").timestamp()
