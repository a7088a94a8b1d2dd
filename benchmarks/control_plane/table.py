"""Cost of one pod's change for the gateway with many models: as an update of its routing table, and as a full
rebuild.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from typing import Any

from plimsoll_cluster.resource import Entry, T
from plimsoll_cluster.store import Part
from plimsoll_gateway.discovery.cluster_table import ClusterTable
from plimsoll_gateway.discovery.kubernetes_objects import MODELS, PODS, model_of
from plimsoll_gateway.discovery.routing_table import TableStore, build_table

REPLICAS = 3
EVENTS = 2000
REBUILDS = 20
Json = dict[str, Any]


def measure(count: int) -> dict[str, Any]:
    """Return percentiles of the CPU milliseconds of an update (`event_ms`) and of a rebuild (`from_nothing_ms`), and
    the MiB that the table and its stores hold.
    """
    tracemalloc.start()
    table, store = _filled(count)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    pods = table.pods.part_of("team")
    one = []
    for number in range(EVENTS):
        event = {"type": "MODIFIED", "object": _pod(number % count, 0, number // count % 2 == 0, 10 + number)}
        before, shown = time.process_time_ns(), store.current
        pods.take(event)
        table.publish()
        one.append((time.process_time_ns() - before) / 1e6)
        assert store.current is not shown
    whole = []
    for _ in range(REBUILDS):
        before = time.process_time_ns()
        made = build_table(model_of(item, table.pods.owned(item.key.namespace, item.uid)) for item in table.models)
        whole.append((time.process_time_ns() - before) / 1e6)
    assert made == store.current
    return {
        "models": count,
        "pods": count * REPLICAS,
        "event_ms": _percentiles(one),
        "from_nothing_ms": _percentiles(whole),
        "held_mib": round(held / (1 << 20), 1),
    }


def _filled(count: int) -> tuple[ClusterTable, TableStore]:
    store = TableStore()
    table = ClusterTable(["team"], store, soon=lambda publish: None)
    models = [MODELS.entry(_model(number)) for number in range(count)]
    pods = [PODS.entry(_pod(number, replica, False, 2)) for number in range(count) for replica in range(REPLICAS)]
    _list(table.models.part_of("team"), models)
    _list(table.pods.part_of("team"), pods)
    _list(table.hosts.part_of("team"), [])
    table.publish()
    return table, store


def _list(part: Part[T], entries: list[Entry[T]]) -> None:
    part.end_list(part.begin_list(), {entry.key: entry for entry in entries}, 2)


def _model(number: int) -> Json:
    return {
        "metadata": {
            "namespace": "team",
            "name": f"model-{number}",
            "uid": f"uid-{number}",
            "resourceVersion": "1",
            "creationTimestamp": f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z",
        },
        "spec": {"model": {"source": "demo://gemma-3-270m"}},
    }


def _pod(number: int, replica: int, ready: bool, version: int) -> Json:
    name = f"model-{number}"
    owner = {"kind": "ModelDeployment", "name": name, "uid": f"uid-{number}", "controller": True}
    return {
        "metadata": {
            "namespace": "team",
            "name": f"{name}-{replica}",
            "uid": f"uid-{number}-{replica}",
            "resourceVersion": str(version),
            "ownerReferences": [owner],
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:conditions": {}}}}],
        },
        "spec": {"containers": [{"name": "runtime", "args": ["serve", "demo://gemma-3-270m", "--name", name]}]},
        "status": {"podIP": "198.18.0.1", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100)
    return {"p50": round(statistics.median(values), 3), "p99": round(cuts[98], 3)}
