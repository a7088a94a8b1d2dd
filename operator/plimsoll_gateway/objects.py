"""From Kubernetes objects to the table: pure functions over what the API server returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from plimsoll_cluster.keys import GROUP as GROUP
from plimsoll_cluster.keys import KIND, VERSION, Object
from plimsoll_cluster.keys import PLURAL as PLURAL
from plimsoll_cluster.pods import conditions_of, is_unheard
from plimsoll_cluster.resource import Entry, Resource
from plimsoll_gateway.table import Model, Replica, Table, build_table

POD_SELECTOR = "app.kubernetes.io/name=plimsoll-runtime,app.kubernetes.io/managed-by=plimsoll-operator"
CONTAINER = "runtime"
PORT = 8000


@dataclass(frozen=True, slots=True)
class Served:
    """What is kept of a ModelDeployment; the fields are Model's."""

    served_names: tuple[str, ...]
    created: float
    message: str


def read_served(item: Object) -> Served:
    """What a ModelDeployment says of itself."""
    meta = item["metadata"]
    names = item.get("spec", {}).get("model", {}).get("servedNames") or [meta["name"]]
    created = datetime.fromisoformat(meta["creationTimestamp"]).timestamp()
    return Served(tuple(names), created, _why_not_ready(item))


def read_replica(pod: Object) -> Replica | None:
    """One pod; None before it has an address, and once it is going away (it drains, and must get nothing new)."""
    address = pod.get("status", {}).get("podIP")
    if not address or pod["metadata"].get("deletionTimestamp"):
        return None
    host = f"[{address}]" if ":" in address else address
    conditions = conditions_of(pod)
    return Replica(
        id=pod["metadata"]["uid"],
        url=f"http://{host}:{PORT}",
        ready=conditions.get("Ready", {}).get("status") == "True",
        names=_started_names(pod),
        unheard=is_unheard(conditions),
    )


MODELS: Resource[Served] = Resource(KIND, f"/apis/{GROUP}/{VERSION}", PLURAL, read_served)
PODS: Resource[Replica | None] = Resource("Pod", "/api/v1", "pods", read_replica, POD_SELECTOR)


def model_of(item: Entry[Served], pods: Iterable[Entry[Replica | None]]) -> Model:
    """A ModelDeployment with the pods that it owns, in whatever order they come."""
    ordered = sorted(pods, key=lambda pod: pod.key.name)
    return Model(
        key=item.key,
        served_names=item.value.served_names,
        created=item.value.created,
        message=item.value.message,
        replicas=tuple(pod.value for pod in ordered if pod.value is not None),
    )


def table_of(deployments: Iterable[Entry[Served]], pods: Iterable[Entry[Replica | None]]) -> Table:
    """The table of ModelDeployments and runtime pods, made from nothing.

    A pod belongs to the object of its namespace whose uid it names as its controller's. A label alone is not enough: it
    outlives a deleted model of the same name. Nor is the uid: whoever may make pods in another namespace could write it
    into one and be sent this model's requests.
    """
    by_owner: dict[tuple[str, str], list[Entry[Replica | None]]] = {}
    for pod in pods:
        if pod.owner is not None:
            by_owner.setdefault((pod.key.namespace, pod.owner.uid), []).append(pod)
    return build_table(model_of(item, by_owner.get((item.key.namespace, item.uid), [])) for item in deployments)


def _why_not_ready(item: Object) -> str:
    ready = conditions_of(item).get("Ready")
    return "" if ready is None or ready.get("status") == "True" else str(ready.get("message") or "")


def _started_names(pod: Object) -> frozenset[str] | None:
    """The `--name` options of the runtime container; None where it has none and answers to all."""
    for container in pod.get("spec", {}).get("containers", []):
        if container.get("name") == CONTAINER:
            args: list[str] = container.get("args") or []
            names = [value for option, value in pairwise(args) if option == "--name"]
            names += [arg.removeprefix("--name=") for arg in args if arg.startswith("--name=")]
            return frozenset(names) if names else None
    return None
