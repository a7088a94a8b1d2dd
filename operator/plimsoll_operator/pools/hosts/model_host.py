"""Builds a ModelHost, which `kubectl get modelhosts` shows for each host's pod. Builders are pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from plimsoll_operator.placement.ledger import MODELS_PER_HOST
from plimsoll_operator.pools.hosts.host_registry import HostPod, Known
from plimsoll_operator.pools.hosts.report import ASLEEP, ON_DEVICE, ModelEntry, Report
from plimsoll_operator.spec.identity import (
    API_VERSION,
    HOST_KIND,
    MANAGED_LABEL,
    MANAGER,
    POOL_LABEL,
    Object,
    ObjectKey,
)
from plimsoll_operator.status.conditions import Condition, cut, with_times
from plimsoll_operator.status.reasons import Reason

REPORTING, DRAINING = "Reporting", "Draining"
BAR = 10
GIB = 2**30
Admits = Callable[[ObjectKey], bool | None]
"""Returns whether a pool accepts a model, None if not known yet."""
ALWAYS_CHANGING = frozenset({"active", "queue", "rate", "lastUsed"})
OF_THE_REPORT = frozenset({"reportTime"})
TEXT_LIMITS = {"revision": 64, "why": 128, "error": 220}
"""The most characters of a model's texts, so that the largest status fits into etcd; a test measures it."""


def build_host(pod: HostPod) -> dict[str, Any]:
    """Build the ModelHost of a pod, without its status. The pod owns it."""
    reference = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
    return {
        "apiVersion": API_VERSION,
        "kind": HOST_KIND,
        "metadata": {
            "name": pod.name,
            "namespace": pod.pool.namespace,
            "labels": {MANAGED_LABEL: MANAGER, POOL_LABEL: pod.pool.name},
            "ownerReferences": [reference],
        },
    }


def host_status(
    known: Known, draining: bool, before: Mapping[str, Any], now: datetime, admits: Admits
) -> dict[str, Any]:
    """Return the whole status of a host's ModelHost; `before` is the last one. Without an accepted report, the fields
    of the report stay as in `before`.

    While it is not known whether the pool accepts a model, its `admitted` stays as in `before`.
    """
    pod, report = known.pod, known.report
    told = before if report is None else _of_report(report)
    kept = {name: told[name] for name in _REPORTED if name in told}
    if "models" in kept:
        models = _listed(kept["models"])
        left_out = len(kept["models"]) - len(models)
        kept["models"] = _with_admission(models, before.get("models") or (), admits, pod.pool.namespace)
    else:
        left_out = 0
    conditions = [_reporting(known, left_out)]
    if draining:
        conditions.append(
            Condition(DRAINING, True, Reason.DRAINING, "its pod will be deleted; its models are placed elsewhere")
        )
    return {
        "pool": pod.pool.name,
        "node": pod.node,
        "pod": pod.uid,
        **kept,
        "conditions": with_times(conditions, before.get("conditions") or [], 1, now),
    }


def _listed(models: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return as many models as the CRD schema accepts, sorted by key. Models on the device are kept before sleeping
    ones.
    """
    found = [_fitting(entry) for entry in models]
    found = sorted(found, key=lambda entry: (_rank(entry["state"]), entry["namespace"], entry["name"]))
    return sorted(found[:MODELS_PER_HOST], key=lambda entry: (entry["namespace"], entry["name"]))


def _fitting(entry: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: cut(entry[name], limit) for name, limit in TEXT_LIMITS.items() if name in entry}
    return {**entry, **texts}


def _rank(state: str) -> int:
    return 0 if state in ON_DEVICE else 1 if state in ASLEEP else 2


def _with_admission(
    models: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]], admits: Admits, home: str
) -> list[dict[str, Any]]:
    """Add `admitted`. Without a decision, models of the pool's own namespace, `home`, are admitted."""
    known = {(entry["namespace"], entry["name"]): entry["admitted"] for entry in before if "admitted" in entry}
    found = []
    for entry in models:
        key = (entry["namespace"], entry["name"])
        admitted = admits(ObjectKey(*key))
        if admitted is None:
            admitted = known.get(key, entry["namespace"] == home)
        found.append({**entry, "admitted": admitted})
    return found


def is_draining(status: Mapping[str, Any]) -> bool:
    """Return whether a status says that the pod is draining."""
    return any(c["type"] == DRAINING and c["status"] == "True" for c in status.get("conditions") or ())


def says_the_same(status: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether two statuses are equal except for always changing numbers and times, for which alone no write is
    made before the next heartbeat.
    """
    return _lasting(status) == _lasting(before)


def load_bar(used: int, line: int) -> str:
    """Return text that shows used device memory as a share of the line, such as `[######....] 61% of 14.4Gi`."""
    share = used / line if line else 0.0
    filled = min(BAR, round(share * BAR))
    return f"[{'#' * filled}{'.' * (BAR - filled)}] {share:.0%} of {line / GIB:.1f}Gi"


def _of_report(report: Report) -> dict[str, Any]:
    device, sleepers = report.device, report.sleepers
    return {
        "instance": report.instance,
        "sequence": report.sequence,
        "reportTime": _stamp(report.time),
        "load": load_bar(device.used, device.line),
        "awake": sum(entry.device > 0 for entry in report.models),
        "asleep": sum(entry.state in ASLEEP for entry in report.models),
        "device": msgspec.to_builtins(device) | {"name": device.name[:253]},
        "sleepers": msgspec.to_builtins(sleepers),
        "models": [_entry(entry) for entry in report.models],
    }


_REPORTED = ("instance", "sequence", "reportTime", "load", "awake", "asleep", "device", "sleepers", "models")


def _entry(entry: ModelEntry) -> dict[str, Any]:
    found: dict[str, Any] = {
        "namespace": entry.namespace,
        "name": entry.name,
        "revision": entry.revision,
        "servedNames": list(entry.served_names),
        "state": entry.state,
        "since": _stamp(entry.since),
        "why": entry.why,
        "bytes": entry.device,
        "hostBytes": entry.host_bytes,
        "active": min(entry.active, 2**31 - 1),
        "queue": min(entry.waiting, 2**31 - 1),
        "rate": f"{entry.rate:.3g}",
        "loads": entry.loads,
        "wakes": entry.wakes,
        "loadingSeconds": f"{entry.loading_seconds:.1f}",
    }
    if entry.last_used is not None:
        found["lastUsed"] = _stamp(entry.last_used)
    if entry.needs is not None:
        found["needs"] = msgspec.to_builtins(entry.needs)
    for name, seconds in (("loadSeconds", entry.load_seconds), ("wakeSeconds", entry.wake_seconds)):
        if seconds is not None:
            found[name] = f"{seconds:.3g}"
    if entry.error is not None:
        found["error"] = entry.error
    return found


def _reporting(known: Known, left_out: int) -> Condition:
    if known.refused:
        return Condition(REPORTING, False, Reason.REPORT_REFUSED, known.trouble)
    if known.trouble:
        return Condition(REPORTING, False, Reason.UNREACHABLE, known.trouble)
    if known.report is None:
        return Condition(REPORTING, None, Reason.WAITING_FOR_REPORT, "it has not reported yet")
    message = "its reports arrive and are valid"
    if left_out:
        message += (
            f"; {left_out} of its models are not listed here and get no requests: a ModelHost lists {MODELS_PER_HOST}, "
            "so raise the pool's replicas"
        )
    return Condition(REPORTING, True, Reason.REPORTING, message)


def _lasting(status: Mapping[str, Any]) -> Object:
    lasting = {name: value for name, value in status.items() if name not in OF_THE_REPORT}
    lasting["device"] = {k: v for k, v in (status.get("device") or {}).items() if k not in ("used", "free")}
    lasting["models"] = [
        {name: value for name, value in entry.items() if name not in ALWAYS_CHANGING} | {"used": "lastUsed" in entry}
        for entry in status.get("models") or ()
    ]
    lasting["conditions"] = _without_times(status.get("conditions") or ())
    return lasting


def _without_times(conditions: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    return sorted((c["type"], c["status"], c["reason"], c["message"]) for c in conditions)


def _stamp(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
