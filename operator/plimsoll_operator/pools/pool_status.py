"""Describes a RuntimePool's status from its spec, its pods and their reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll_operator.planning.pod_view import PodView
from plimsoll_operator.pools.hosts.host_registry import Known, refused_reports
from plimsoll_operator.pools.hosts.model_host import load_bar
from plimsoll_operator.spec.identity import POOL_KIND, selector
from plimsoll_operator.spec.runtime_pool import PoolSpec
from plimsoll_operator.status.conditions import LOADED, ROUTABLE, Condition
from plimsoll_operator.status.reasons import NOT_LOADED, Reason
from plimsoll_operator.status.status import (
    Fields,
    Rejections,
    phase_of,
    placed_of,
    progressing_of,
    ready_of,
    standard_of,
)


def describe_pool(
    seen: PodView[PoolSpec],
    rejections: Rejections,
    before: Sequence[Mapping[str, Any]],
    hosts: Sequence[Known],
    models: int,
) -> tuple[Fields, list[Condition]]:
    """Return the status without conditions, and the conditions; `before` are those of the last status."""
    spec = seen.spec
    refused = refused_reports(hosts)
    parts = [placed_of(seen, rejections.pod), _loaded(seen, refused), _routable(seen)]
    ready, progressing = ready_of(seen, parts), progressing_of(seen, parts, before)
    fields = {
        "observedGeneration": spec.generation,
        "replicas": len(seen.live),
        "readyReplicas": seen.ready,
        "updatedReplicas": len(seen.current),
        "selector": selector(spec.key.name, spec.owner.uid, POOL_KIND),
        "phase": "Degraded" if refused and seen.ready else phase_of(seen, progressing, parts),
        "models": models,
        "load": _load(hosts),
    }
    return fields, [ready, progressing, *parts, *standard_of(progressing)]


def _loaded(seen: PodView[PoolSpec], refused: str) -> Condition:
    replicas = seen.spec.replicas
    if (failure := seen.failure(NOT_LOADED)) is not None:
        return Condition(LOADED, False, failure.reason, failure.message)
    if refused:
        return Condition(LOADED, False, Reason.REPORT_REFUSED, f"a host gets no new models: {refused}")
    message = f"{seen.good_ready} of {replicas} hosts run"
    if seen.good_ready < replicas:
        return Condition(LOADED, False, Reason.LOADING, message)
    return Condition(LOADED, True, Reason.LOADED, message)


def _routable(seen: PodView[PoolSpec]) -> Condition:
    if not seen.ready:
        reason = Reason.STOPPED if seen.spec.replicas == 0 else Reason.NO_READY_REPLICA
        return Condition(ROUTABLE, False, reason, "no host is ready for requests")
    return Condition(ROUTABLE, True, Reason.ROUTABLE, f"{seen.ready} hosts are ready for requests")


def _load(hosts: Sequence[Known]) -> str:
    devices = [known.report.device for known in hosts if known.report is not None]
    return load_bar(sum(d.used for d in devices), sum(d.line for d in devices)) if devices else ""
