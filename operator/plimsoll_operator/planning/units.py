"""Sorts the pods of an object into units. Plans and statuses count a unit as one replica."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from plimsoll_operator.planning.pods import Pod
from plimsoll_operator.status.pod_failure import Failure


@dataclass(frozen=True, slots=True)
class Unit:
    """The `pods` of one group and one hash, by index. Its pods are all live, all deleted, or all dead.

    `size`: the number of pods that it should have. `whole`: no pod is missing. `leaderless`: its pods are live, but
    the one with index 0 is gone, so that it never serves again. `failure`: that of the first pod that has one; the
    other pods only wait for it, and do not load. `node`: one that is being drained if the unit is `leaving`, else
    that of the first pod. `name` and `uid` are those of the first pod. `ready`, `scheduled`, `cut_off` and `lost`
    hold for all pods, `leaving` for at least one. Other fields have the meaning of `Pod`'s: of several times the
    latest, except for `created`; `worth` is the sum.
    """

    pods: tuple[Pod, ...]
    size: int
    whole: bool
    leaderless: bool
    name: str
    uid: str
    group: str
    hash: str
    revision: str
    created: datetime
    live: bool
    stopping: bool
    dead: bool
    scheduled: bool
    ready: bool
    leaving: bool
    cut_off: bool
    lost: bool
    moved: datetime
    ended: datetime
    gone_by: datetime | None
    loads_since: datetime | None
    failure: Failure | None
    node: str
    worth: float


def units_of(pods: Iterable[Pod]) -> tuple[Unit, ...]:
    """Sort pods into units; these have the order of their first pods in `pods`.

    Two pods of one index are in different units, for example two dead pods that were replaced one after the other. So
    single pods are units of their own, even if they have the same group.
    """
    units: list[dict[int, Pod]] = []
    found: dict[tuple[str, str, bool, bool], list[dict[int, Pod]]] = {}
    for pod in pods:
        alike = found.setdefault((pod.group, pod.hash, pod.stopping, pod.dead), [])
        unit = next((unit for unit in alike if len(unit) < pod.size and pod.index not in unit), None)
        if unit is None:
            unit = {}
            alike.append(unit)
            units.append(unit)
        unit[pod.index] = pod
    return tuple(_unit([unit[index] for index in sorted(unit)]) for unit in units)


def _unit(pods: Sequence[Pod]) -> Unit:
    first, whole = pods[0], len(pods) == pods[0].size
    leaderless = first.live and (first.leader != "" or (first.index > 0 and not whole))
    failure = next((p.failure for p in pods if p.failure is not None), None)
    loading = [p.loads_since for p in pods if p.loads_since is not None]
    return Unit(
        pods=tuple(pods),
        size=first.size,
        whole=whole,
        leaderless=leaderless,
        name=first.name,
        uid=first.uid,
        group=first.group,
        hash=first.hash,
        revision=first.revision,
        created=min(p.created for p in pods),
        live=first.live and not leaderless,
        stopping=first.stopping,
        dead=first.dead,
        scheduled=whole and all(p.scheduled for p in pods),
        ready=whole and all(p.ready for p in pods),
        leaving=any(p.leaving for p in pods),
        cut_off=whole and any(p.cut_off for p in pods) and all(p.ready or p.cut_off for p in pods),
        lost=all(p.lost for p in pods),
        moved=max(p.moved for p in pods),
        ended=max(p.ended for p in pods),
        gone_by=max((p.gone_by for p in pods if p.gone_by is not None), default=None),
        loads_since=max(loading, default=None) if failure is None else None,
        failure=failure,
        node=next((p.node for p in pods if p.leaving), first.node),
        worth=sum(p.worth for p in pods),
    )
