"""Metrics of models and drains agree with the stores, and end with the objects."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from operator_support.objects import EPOCH, model, stamp
from prometheus_client import CollectorRegistry

from plimsoll_operator.controller.object_metrics import ObjectMetrics
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.status.conditions import OURS

LABELS = {"namespace": "team", "model": "gemma"}


class Scraped:
    """The metrics over some stores, at a time that a test sets."""

    def __init__(self) -> None:
        self.now = EPOCH
        self.stores = Stores(None)
        self._version = 0
        self._registry = CollectorRegistry()
        metrics = ObjectMetrics(lambda: self.now)
        self._registry.register(metrics)
        assert self.series() == {}, "an operator that waits for the Lease has none"
        metrics.follow(self.stores)

    def take(self, kind: str, item: dict[str, Any], event: str = "MODIFIED") -> None:
        self._version += 1
        body = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self._version)}}
        store = self.stores.of(kind)
        store.part_of("team").take({"type": event, "object": body})

    def value(self, name: str, /, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"plimsoll_operator_{name}", labels)

    def series(self) -> dict[tuple[str, ...], float]:
        return {
            (sample.name, *sample.labels.values()): sample.value
            for metric in self._registry.collect()
            for sample in metric.samples
        }


def condition(kind: str, status: str, reason: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason}


def test_a_model_has_its_replicas_and_conditions_until_it_is_deleted() -> None:
    scraped = Scraped()
    conditions = [
        condition("Ready", "False", "Loading"),
        condition("Placed", "True", "Scheduled"),
        condition("Loaded", "Unknown", "Loading"),
        condition("theirs.example.com/Checked", "True", "Fine"),
    ]
    item = model(replicas=2)
    scraped.take("ModelDeployment", item)
    assert scraped.value("wanted_replicas", **LABELS) == 2
    assert scraped.value("ready_replicas", **LABELS) == 0
    assert scraped.value("not_ready", reason="Loading", **LABELS) is None
    item["status"] = {"desiredReplicas": 3, "replicas": 2, "readyReplicas": 1, "conditions": conditions}
    scraped.take("ModelDeployment", item)
    assert [scraped.value(f"{name}replicas", **LABELS) for name in ("wanted_", "", "ready_")] == [3, 2, 1]
    held = {kind: scraped.value("condition", type=kind, **LABELS) for kind in OURS}
    assert held == {kind: float(kind == "Placed") for kind in OURS}
    assert scraped.value("condition", type="theirs.example.com/Checked", **LABELS) is None
    assert scraped.value("not_ready", reason="Loading", **LABELS) == 1
    assert scraped.value("canary_weight_ratio", **LABELS) is None
    scraped.take("ModelDeployment", item, "DELETED")
    assert scraped.series() == {}


def test_a_canary_has_its_state_and_weight() -> None:
    scraped = Scraped()
    canary = {
        "revision": "b",
        "stableRevision": "a",
        "step": 1,
        "steps": 2,
        "weight": 25,
        "state": "Observing",
        "since": stamp(EPOCH),
        "terms": "t",
    }
    scraped.take("ModelDeployment", {**model(), "status": {"canary": canary}})
    states = {state: scraped.value("canary", state=state, **LABELS) for state in ("Starting", "Observing", "TakenBack")}
    assert states == {"Starting": 0, "Observing": 1, "TakenBack": 0}
    assert scraped.value("canary_weight_ratio", **LABELS) == 0.25


def pod(name: str, owner: str, kind: str, deleted: int | None = None, grace: int = 30) -> dict[str, Any]:
    """Return a pod that was deleted `deleted` seconds after EPOCH, None if it was not."""
    meta: dict[str, Any] = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "creationTimestamp": stamp(EPOCH),
        "ownerReferences": [{"kind": kind, "name": owner, "uid": f"uid-{owner}", "controller": True}],
    }
    if deleted is not None:
        meta["deletionTimestamp"] = stamp(EPOCH + timedelta(seconds=deleted + grace))
        meta["deletionGracePeriodSeconds"] = grace
    return {"metadata": meta, "spec": {}, "status": {}}


def test_drains_are_counted_by_owner_until_they_end() -> None:
    scraped = Scraped()
    scraped.take("Pod", pod("a", "gemma", "ModelDeployment", deleted=0))
    scraped.take("Pod", pod("b", "gemma", "ModelDeployment", deleted=20))
    scraped.take("Pod", pod("c", "gemma", "ModelDeployment"))
    scraped.take("Pod", pod("d", "shared", "RuntimePool", deleted=0, grace=3600))
    scraped.now = EPOCH + timedelta(seconds=45)
    of_model = {"namespace": "team", "kind": "ModelDeployment", "name": "gemma"}
    of_pool = {"namespace": "team", "kind": "RuntimePool", "name": "shared"}
    names = ("draining_pods", "longest_drain_seconds", "overdue_drain_seconds")
    assert [scraped.value(name, **of_model) for name in names] == [2, 45, 15]
    assert [scraped.value(name, **of_pool) for name in names] == [1, 45, 0]
    for name in ("a", "b", "d"):
        scraped.take("Pod", pod(name, "x", "ModelDeployment"), "DELETED")
    assert scraped.series() == {}
