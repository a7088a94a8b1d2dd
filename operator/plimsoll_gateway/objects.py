"""From Kubernetes objects to the table: pure functions over what the API server returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

from plimsoll_gateway.table import Model, ObjectKey, Replica, Table, build_table

GROUP, VERSION, PLURAL = "plimsoll.dev", "v1alpha1", "modeldeployments"
POD_SELECTOR = "app.kubernetes.io/name=plimsoll-runtime,app.kubernetes.io/managed-by=plimsoll-operator"
CONTAINER = "runtime"
PORT = 8000

Object = Mapping[str, Any]


def table_of(deployments: Iterable[Object], pods: Iterable[Object]) -> Table:
    """The table of ModelDeployments and runtime pods, in whatever order they come."""
    by_owner: dict[tuple[str, str], list[Object]] = {}
    for pod in pods:
        by_owner.setdefault(_owner(pod), []).append(pod)
    return build_table(_model(item, by_owner.get(_identity(item), [])) for item in deployments)


def _identity(item: Object) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["uid"]


def _owner(pod: Object) -> tuple[str, str]:
    """Namespace and uid of the object that made this pod.

    A label alone is not enough: it outlives a deleted model of the same name. Nor is the uid: whoever may make pods
    in another namespace could write it into one and be sent this model's requests.
    """
    owners = pod["metadata"].get("ownerReferences") or []
    return pod["metadata"]["namespace"], next((owner["uid"] for owner in owners if owner.get("controller")), "")


def _model(item: Object, pods: Iterable[Object]) -> Model:
    meta = item["metadata"]
    names = item.get("spec", {}).get("model", {}).get("servedNames") or [meta["name"]]
    ordered = sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))
    return Model(
        key=ObjectKey(meta["namespace"], meta["name"]),
        served_names=tuple(names),
        created=datetime.fromisoformat(meta["creationTimestamp"]).timestamp(),
        message=_why_not_ready(item),
        replicas=tuple(replica for replica in map(_replica, ordered) if replica is not None),
    )


def _why_not_ready(item: Object) -> str:
    ready = _condition(item, "Ready")
    return "" if ready is None or ready.get("status") == "True" else str(ready.get("message") or "")


def _replica(pod: Object) -> Replica | None:
    """One pod; None before it has an address, and once it is going away (it drains, and must get nothing new)."""
    address = pod.get("status", {}).get("podIP")
    if not address or pod["metadata"].get("deletionTimestamp"):
        return None
    host = f"[{address}]" if ":" in address else address
    ready = _condition(pod, "Ready")
    return Replica(
        id=pod["metadata"]["uid"],
        url=f"http://{host}:{PORT}",
        ready=ready is not None and ready.get("status") == "True",
        names=_started_names(pod),
        unheard=_is_unheard(pod),
    )


def _started_names(pod: Object) -> frozenset[str] | None:
    """The `--name` options of the runtime container; None where it has none and answers to all."""
    for container in pod.get("spec", {}).get("containers", []):
        if container.get("name") == CONTAINER:
            args: list[str] = container.get("args") or []
            names = [value for option, value in pairwise(args) if option == "--name"]
            names += [arg.removeprefix("--name=") for arg in args if arg.startswith("--name=")]
            return frozenset(names) if names else None
    return None


def _is_unheard(pod: Object) -> bool:
    """Whether the node controller took a pod's readiness back because its node is silent.

    It changes this one condition's status and leaves the rest as the kubelet last wrote it. A kubelet takes back
    `ContainersReady` too, or gives a reason (a readiness gate).
    """
    ready, containers = _condition(pod, "Ready"), _condition(pod, "ContainersReady")
    if ready is None or containers is None:
        return False
    return ready.get("status") == "False" and not ready.get("reason") and containers.get("status") == "True"


def _condition(item: Object, kind: str) -> Object | None:
    conditions: list[Object] = item.get("status", {}).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == kind), None)
