"""The registry of hosts: the last valid report of each, and why newer ones are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from plimsoll_operator.kube.clock import AHEAD_SECONDS, FROM_THE_FUTURE
from plimsoll_operator.pools.hosts.report import ModelEntry, Report
from plimsoll_operator.spec.identity import ObjectKey


def contradiction(before: Report | None, report: Report, now: float, memory: int | None = None) -> str | None:
    """Return why a report cannot be true, or None. The text does not change while the problem lasts.

    `before` is the last accepted report of the pod. `memory` is the memory limit of a pod whose device is a CPU, None
    for one with an accelerator.
    """
    return next(_complaints(before, report, now, memory), None)


def _complaints(before: Report | None, report: Report, now: float, memory: int | None) -> Iterator[str]:
    device, sleepers = report.device, report.sleepers
    if before is not None and before.instance == report.instance:
        if report.sequence < before.sequence:
            yield "its sequence is below that of an earlier report"
        if report.time < before.time - 1:
            yield "its time is before that of an earlier report of the same process"
    if report.time > now + AHEAD_SECONDS:
        yield FROM_THE_FUTURE
    if device.line > device.capacity:
        yield f"its line of {device.line} bytes is above its capacity of {device.capacity}"
    if memory is not None and device.kind != "cpu":
        yield (
            f"it uses an accelerator ({device.kind}) that its pool does not request, and that another pool on the node "
            "may have: set resources.accelerator in the RuntimePool, or hide the device from its pods"
        )
    if memory is not None and device.kind == "cpu" and device.capacity + sleepers.capacity > memory:
        taken = device.capacity + sleepers.capacity
        yield f"its capacity and sleepers are {taken} bytes together, above its pod's memory limit of {memory}"
    granted = sum(entry.device for entry in report.models)
    if granted > device.capacity:
        yield f"its models' grants of {granted} bytes exceed its capacity of {device.capacity}"
    if sleepers.used > sleepers.capacity:
        yield f"its images of {sleepers.used} bytes exceed its sleepers' capacity of {sleepers.capacity}"
    if len({entry.key for entry in report.models}) < len(report.models):
        yield "it names a model twice"


INSTANCES_KEPT = 8


@dataclass(frozen=True, slots=True)
class HostPod:
    """A runtime pod of a pool. `memory`: its memory limit in bytes if its device is a CPU, 0 if that is unknown or it
    has an accelerator. `address`: "" while it has none.
    """

    pool: ObjectKey
    name: str
    uid: str
    node: str
    address: str
    memory: int

    @property
    def key(self) -> ObjectKey:
        """The ModelHost's key, with the name of the pod."""
        return ObjectKey(self.pool.namespace, self.name)


@dataclass(slots=True)
class Known:
    """A host. `report`: its last accepted report, None if there is none. `heard`: when that came, by the operator's
    clock. `trouble`: why no newer one is accepted, "" if there is no problem.

    `refused`: its newest report was rejected. `asked`: a poll of this process has returned or failed at least once.
    `past`: instances of earlier processes of the pod. `entries`: the models of `report` that are not Absent.
    """

    pod: HostPod
    report: Report | None = None
    heard: float = 0.0
    trouble: str = ""
    refused: bool = False
    asked: bool = False
    past: list[str] = field(default_factory=list)
    entries: dict[ObjectKey, ModelEntry] = field(default_factory=dict)

    def failure(self, model: ObjectKey, revision: str | None = None) -> str:
        """Return why a placed model is absent, as its host reports it for this revision, or for any (None); else ""."""
        entry = None if self.report is None or model in self.entries else self.report.entry(model)
        if entry is None or revision not in (None, entry.revision):
            return ""
        return entry.error or ""


Changed = Callable[[Known, Report | None], None]
"""Called with a host that has changed, and the report that it had before."""


def refused_reports(hosts: Sequence[Known]) -> str:
    """Return which of the hosts' reports are rejected and why, as text; "" if none is."""
    refused = [known for known in hosts if known.refused]
    if not refused:
        return ""
    more = f" (and those of {len(refused) - 1} more hosts)" if refused[1:] else ""
    return f"ModelHost {refused[0].pod.name}: {refused[0].trouble}{more}"


class HostRegistry:
    """All hosts of all pools. Calls `changed` for each accepted report, and if the trouble of a host changes."""

    def __init__(self, changed: Changed = lambda known, before: None) -> None:
        self._changed = changed
        self._hosts: dict[str, Known] = {}

    def __iter__(self) -> Iterator[Known]:
        return iter(self._hosts.values())

    def get(self, uid: str) -> Known | None:
        """Return the host in the pod with this uid."""
        return self._hosts.get(uid)

    def of(self, pool: ObjectKey) -> list[Known]:
        """Return the hosts of a pool, by name."""
        return sorted((known for known in self._hosts.values() if known.pod.pool == pool), key=lambda k: k.pod.name)

    def holders(self, model: ObjectKey) -> list[Known]:
        """Return the hosts of all pools that report a model, except as Absent."""
        return [known for known in self._hosts.values() if model in known.entries]

    def keep(self, pool: ObjectKey, pods: Iterable[HostPod]) -> None:
        """Set the pods of a pool, and remove its other hosts."""
        wanted = {pod.uid: pod for pod in pods}
        for uid in [uid for uid, known in self._hosts.items() if known.pod.pool == pool and uid not in wanted]:
            del self._hosts[uid]
        for uid, pod in wanted.items():
            self._hosts.setdefault(uid, Known(pod)).pod = pod

    def take(self, uid: str, report: Report, now: float) -> None:
        """Process a report that came at `now`. One that cannot be true is recorded as trouble and otherwise ignored."""
        known = self._hosts.get(uid)
        if known is None:
            return
        known.asked = True
        memory = known.pod.memory or None
        wrong = contradiction(known.report, report, now, memory)
        if wrong is None and report.instance in known.past:
            wrong = f"it is from process {report.instance}, which another process has replaced"
        if wrong is not None:
            self._tell_trouble(known, f"its report is rejected: {wrong}", refused=True)
            return
        before = known.report
        if before is not None and before.instance != report.instance:
            known.past = [*known.past, before.instance][-INSTANCES_KEPT:]
        known.report, known.heard, known.trouble, known.refused = report, now, "", False
        known.entries = {entry.key: entry for entry in report.models if entry.state != "Absent"}
        self._changed(known, before)

    def fail(self, uid: str, why: str, *, refused: bool = False) -> None:
        """Record that a host could not be polled, or that its report was not valid (`refused`)."""
        known = self._hosts.get(uid)
        if known is not None:
            known.asked = True
            self._tell_trouble(known, why, refused=refused)

    def check_integrity(self) -> None:
        """Raise AssertionError if the records contradict each other."""
        for uid, known in self._hosts.items():
            assert uid == known.pod.uid
            assert len(known.past) <= INSTANCES_KEPT
            if known.report is not None:
                assert known.asked
                assert known.report.instance not in known.past
                assert known.entries.keys() <= {entry.key for entry in known.report.models}

    def _tell_trouble(self, known: Known, why: str, *, refused: bool) -> None:
        if (known.trouble, known.refused) != (why, refused):
            known.trouble, known.refused = why, refused
            self._changed(known, known.report)
