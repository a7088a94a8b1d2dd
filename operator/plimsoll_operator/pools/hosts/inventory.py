"""Makes the planner's records of a pool's hosts, from reports (else ModelHosts), pods, and accepted actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from plimsoll_operator.placement.records.host import Copy, Host, Sleepers
from plimsoll_operator.placement.records.level import Condition, Pressure, State
from plimsoll_operator.placement.records.model import Need
from plimsoll_operator.planning.pods import Pod
from plimsoll_operator.pools.hosts.host_registry import Known
from plimsoll_operator.pools.hosts.report import ModelEntry, Report
from plimsoll_operator.spec.identity import Object, ObjectKey
from plimsoll_operator.status.reasons import Reason

PATIENCE_SECONDS = 60.0
"""Seconds within which a host's report shows an action that it has accepted."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An action that a host has accepted and its report does not show yet.

    `instance` and `sequence` are those of the last report before it. `revision` is the model's wanted one. `going`: the
    action removes the model from the host. `since` is by the operator's clock.
    """

    instance: str
    sequence: int
    revision: str
    going: bool
    since: float

    def is_open(self, report: Report | None, entry: ModelEntry | None, now: float) -> bool:
        """Return whether the planner must still assume the action's effect: the report of the same process does not
        show it yet, and `PATIENCE_SECONDS` have not passed. `entry`: the model in the report, None if absent.
        """
        if report is None or report.instance != self.instance or now - self.since > PATIENCE_SECONDS:
            return False
        if self.going:
            return entry is not None
        return entry is None or (entry.revision != self.revision and report.sequence <= self.sequence)


def host_of(pod: Pod, known: Known, stored: Object, asked: Mapping[ObjectKey, Asked], *, draining: bool) -> Host | None:
    """Return a host as the planner's record; None if there is neither a report nor a stored status."""
    found = _reported(known) if known.report is not None else _stored(known, stored)
    if found is None:
        return None
    return msgspec.structs.replace(
        found,
        condition=_condition(pod, known, draining=draining),
        models=_with_asked(found.models, asked),
    )


def _condition(pod: Pod, known: Known, *, draining: bool) -> Condition:
    if pod.dead or pod.lost or (pod.failure is not None and pod.failure.reason is Reason.NODE_LOST):
        return Condition.LOST
    if draining or pod.stopping or pod.leaving:
        return Condition.DRAINING
    return Condition.CORDONED if not pod.ready or known.trouble else Condition.READY


def _reported(known: Known) -> Host:
    report = known.report
    assert report is not None
    device = report.device
    return Host(
        key=known.pod.key,
        node=known.pod.node,
        device=device.kind,
        capacity=device.capacity,
        line=device.line,
        reserved=device.reserved,
        pressure=Pressure(device.pressure),
        sleepers=Sleepers(report.sleepers.capacity, report.sleepers.used),
        instance=report.instance,
        sequence=report.sequence,
        time=report.time,
        models=tuple(_copy(entry) for entry in sorted(known.entries.values(), key=lambda entry: entry.key)),
    )


def _copy(entry: ModelEntry) -> Copy:
    return Copy(
        model=entry.key,
        revision=entry.revision,
        state=State(entry.state),
        weights=entry.weights,
        workspace=entry.workspace,
        kv=entry.kv,
        host=entry.host_bytes,
        active=entry.active,
        waiting=entry.waiting,
        rate=entry.rate,
        last_used=entry.last_used or 0.0,
        since=entry.since,
        load_seconds=entry.load_seconds or 0.0,
        wake_seconds=entry.wake_seconds or 0.0,
        failures=1 if entry.error is not None else 0,
    )


def _stored(known: Known, status: Object) -> Host | None:
    """Return the host as in the status of its ModelHost, which an earlier leader wrote; None if that has no device."""
    device: Mapping[str, Any] = status.get("device") or {}
    if not device:
        return None
    sleepers = status.get("sleepers") or {}
    models = tuple(_stored_copy(entry) for entry in status.get("models") or () if entry["state"] != "Absent")
    return Host(
        key=known.pod.key,
        node=known.pod.node,
        device=device["kind"],
        capacity=device["capacity"],
        line=device["line"],
        reserved=device["reserved"],
        pressure=Pressure(device["pressure"]),
        sleepers=Sleepers(sleepers.get("capacity", 0), sleepers.get("used", 0)),
        time=_time(status.get("reportTime")),
        models=models,
    )


def _stored_copy(entry: Mapping[str, Any]) -> Copy:
    """Return a copy as in an entry of a ModelHost, without the requests that were in flight: those have ended."""
    need, held = _stored_need(entry), entry.get("bytes", 0)
    weights, workspace = (need.weights, need.workspace) if need is not None and held else (held, 0)
    return Copy(
        model=ObjectKey(entry["namespace"], entry["name"]),
        revision=entry.get("revision", ""),
        state=State(entry["state"]),
        weights=weights,
        workspace=workspace,
        kv=max(0, held - weights - workspace),
        host=entry.get("hostBytes", 0),
        rate=float(entry.get("rate", 0)),
        last_used=_time(entry.get("lastUsed")),
        since=_time(entry.get("since")),
        load_seconds=float(entry.get("loadSeconds", 0)),
        wake_seconds=float(entry.get("wakeSeconds", 0)),
        failures=1 if "error" in entry else 0,
    )


def stored_needs(status: Object) -> Iterator[tuple[ObjectKey, str, Need]]:
    """Yield model, revision and size of each model in a ModelHost's status that has a size."""
    for entry in status.get("models") or ():
        need = _stored_need(entry)
        if need is not None:
            yield ObjectKey(entry["namespace"], entry["name"]), entry.get("revision", ""), need


def _stored_need(entry: Mapping[str, Any]) -> Need | None:
    """Return the stored need; None while the files are fetched."""
    found = entry.get("needs")
    return None if found is None else Need(found["weights"], found["workspace"], found["kv"], found["image"])


def _time(stamp: str | None) -> float:
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def _with_asked(models: tuple[Copy, ...], asked: Mapping[ObjectKey, Asked]) -> tuple[Copy, ...]:
    copies = {copy.model: copy for copy in models}
    for model, change in asked.items():
        known = copies.get(model)
        if known is not None and change.going:
            copies[model] = msgspec.structs.replace(known, going=True)
        elif known is not None:
            copies[model] = msgspec.structs.replace(known, revision=change.revision)
        elif not change.going:
            copies[model] = Copy(model=model, revision=change.revision, state=State.FETCHING)
    return tuple(copies[model] for model in sorted(copies))
