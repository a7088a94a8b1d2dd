"""Metrics of objects in the cluster, read from the operator's copies at the time of a scrape.

So they agree with the objects' statuses, and the series of an object end with it. An operator that waits for the Lease
has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from plimsoll_cluster.resource import Entry
from plimsoll_operator.canary.state import State, read_canary
from plimsoll_operator.kube.clock import utc_now
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.planning.pods import Pod
from plimsoll_operator.spec.identity import Object
from plimsoll_operator.status.conditions import OURS, READY

MODEL = ("namespace", "model")
OWNER = ("namespace", "kind", "name")
NOTHING = timedelta()


class ObjectMetrics(Collector):
    """Collects replicas, conditions and canaries of models, and the drains of pods."""

    def __init__(self, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock = clock
        self._stores: Stores | None = None

    def follow(self, stores: Stores) -> None:
        """Read these stores from now on."""
        self._stores = stores

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics."""
        stores = self._stores
        models = [] if stores is None else list(stores.models)
        yield from _replicas(models)
        yield from _conditions(models)
        yield from _canaries(models)
        yield from _drains([] if stores is None else stores.pods, self._clock())


def _labels(entry: Entry[Object]) -> tuple[str, str]:
    return entry.key.namespace, entry.key.name


def _replicas(models: Iterable[Entry[Object]]) -> Iterator[GaugeMetricFamily]:
    wanted = GaugeMetricFamily(
        "plimsoll_operator_wanted_replicas",
        "Replicas that a ModelDeployment is to have, by its spec or its scaling",
        labels=MODEL,
    )
    present = GaugeMetricFamily(
        "plimsoll_operator_replicas", "Replicas that a ModelDeployment has, ready or not", labels=MODEL
    )
    ready = GaugeMetricFamily(
        "plimsoll_operator_ready_replicas", "Replicas of a ModelDeployment that answer requests", labels=MODEL
    )
    for entry in models:
        status = entry.value.get("status") or {}
        wanted.add_metric(_labels(entry), status.get("desiredReplicas", entry.value["spec"].get("replicas", 1)))
        present.add_metric(_labels(entry), status.get("replicas", 0))
        ready.add_metric(_labels(entry), status.get("readyReplicas", 0))
    yield wanted
    yield present
    yield ready


def _conditions(models: Iterable[Entry[Object]]) -> Iterator[GaugeMetricFamily]:
    held = GaugeMetricFamily(
        "plimsoll_operator_condition",
        "1 if a condition of a ModelDeployment is True, 0 if it is False, Unknown or absent",
        labels=(*MODEL, "type"),
    )
    why = GaugeMetricFamily(
        "plimsoll_operator_not_ready",
        "1 while a ModelDeployment is not Ready, by the reason of that condition",
        labels=(*MODEL, "reason"),
    )
    for entry in models:
        found = {c["type"]: c for c in (entry.value.get("status") or {}).get("conditions") or () if c["type"] in OURS}
        for kind in sorted(OURS):
            held.add_metric((*_labels(entry), kind), kind in found and found[kind]["status"] == "True")
        if READY in found and found[READY]["status"] != "True":
            why.add_metric((*_labels(entry), found[READY]["reason"]), 1)
    yield held
    yield why


def _canaries(models: Iterable[Entry[Object]]) -> Iterator[GaugeMetricFamily]:
    states = GaugeMetricFamily(
        "plimsoll_operator_canary",
        "1 for the state of a ModelDeployment's canary, 0 for the other states; no series without a canary",
        labels=(*MODEL, "state"),
    )
    weights = GaugeMetricFamily(
        "plimsoll_operator_canary_weight_ratio", "Share of requests that a canary gets, from 0 to 1", labels=MODEL
    )
    for entry in models:
        canary = read_canary(entry.value.get("status") or {})
        if canary is not None:
            for state in State:
                states.add_metric((*_labels(entry), state.value), state is canary.state)
            weights.add_metric(_labels(entry), canary.weight / 100)
    yield states
    yield weights


def _drains(pods: Iterable[Entry[Pod]], now: datetime) -> Iterator[GaugeMetricFamily]:
    count = GaugeMetricFamily(
        "plimsoll_operator_draining_pods",
        "Deleted pods that have not ended yet, by the ModelDeployment or RuntimePool that owns them",
        labels=OWNER,
    )
    longest = GaugeMetricFamily(
        "plimsoll_operator_longest_drain_seconds",
        "Seconds since the deletion of the pod that has been draining longest",
        labels=OWNER,
    )
    overdue = GaugeMetricFamily(
        "plimsoll_operator_overdue_drain_seconds",
        "Seconds by which the most overdue of these pods exceeds its grace period; 0 if none does",
        labels=OWNER,
    )
    drains: dict[tuple[str, str, str], list[tuple[timedelta, timedelta]]] = {}
    for entry in pods:
        gone_by = entry.value.gone_by
        if gone_by is not None and entry.owner is not None:
            owner = entry.key.namespace, entry.owner.kind, entry.owner.name
            late = now - gone_by
            drains.setdefault(owner, []).append((max(NOTHING, late + entry.value.grace), max(NOTHING, late)))
    for owner, times in drains.items():
        count.add_metric(owner, len(times))
        longest.add_metric(owner, max(since for since, _ in times).total_seconds())
        overdue.add_metric(owner, max(late for _, late in times).total_seconds())
    yield count
    yield longest
    yield overdue


OBJECTS = ObjectMetrics()
"""The metrics of this process: they follow the stores of its last controller."""
REGISTRY.register(OBJECTS)
