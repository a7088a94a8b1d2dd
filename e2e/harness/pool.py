"""A pool of runtime pods with small random models, and their placements."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from harness.kube import GROUP, Kube, Object
from harness.tiny_model import RUNTIME, write_tiny_model
from harness.volume import CLAIM, provide_volume
from harness.waiting import until

NAME = "shared"
PODS = 2
SETTLED_SECONDS = 300
RESIDENCY = 2
"""Minimum residency of the models, in seconds."""


def pool(replicas: int = PODS, *, memory: str = "2Gi", sleepers: str = "256Mi", residency: int = RESIDENCY) -> Object:
    """Return a RuntimePool. By default, each pod has memory for eight awake models, and for all of them asleep."""
    return {
        "apiVersion": GROUP,
        "kind": "RuntimePool",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": replicas,
            "resources": {"cpu": "200m", "memory": memory},
            "memory": {"line": "90%", "sleepers": sleepers},
            "eviction": {"minimumResidencySeconds": residency},
            "template": {"volumes": [{"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}}]},
        },
    }


def names(scenario: str, count: int) -> list[str]:
    """Return names of a scenario's models, which must be unique in the cluster because they are served names."""
    return [f"{scenario}-{number}" for number in range(count)]


def model(name: str, source: str = "", **spec: Any) -> Object:
    """Return a ModelDeployment in the pool. Without `source`, its files are in the folder on the volume with the number
    at the end of its name.
    """
    base = {
        "model": {"source": source or f"pvc://{CLAIM}/{_folder(name)}"},
        "placement": {"pool": NAME},
        "runtime": RUNTIME,
    }
    return {"apiVersion": GROUP, "kind": "ModelDeployment", "metadata": {"name": name}, "spec": base | spec}


def provide_models(kube: Kube, folder: Path, names: list[str]) -> None:
    """Write the models' files, and create a claim for them. Models with the same number share files."""
    for name in names:
        write_tiny_model(folder / _folder(name), seed=_number(name))
    provide_volume(kube, folder)


def _folder(name: str) -> str:
    return f"tiny-{_number(name)}"


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def start(kube: Kube, folder: Path, names: list[str], **options: Any) -> None:
    """Create the pool with these models, and wait until each is ready."""
    provide_models(kube, folder, names)
    kube.apply(pool(**options))
    for name in names:
        kube.apply(model(name))
    for name in names:
        kube.wait_condition(name, "Ready", "True")


def states(kube: Kube, name: str) -> set[str]:
    """Return the states (as in `status.placements`) that a model has on its hosts."""
    return {placement["state"] for placement in kube.model(name)["status"].get("placements", [])}


def places(kube: Kube, name: str) -> list[str]:
    """Return the names of a model's hosts, as in its `status.placements`, sorted."""
    return sorted(placement["host"] for placement in kube.model(name)["status"].get("placements", []))


def hosts(kube: Kube) -> list[str]:
    """Return the names of the namespace's ModelHosts, oldest first. Each has the name of a pod of the pool."""
    found = sorted(
        kube.model_hosts(), key=lambda host: (host["metadata"]["creationTimestamp"], host["metadata"]["name"])
    )
    return [host["metadata"]["name"] for host in found]


def reporting(kube: Kube) -> list[str]:
    """Return the names of the ModelHosts whose condition Reporting is True."""
    return [
        host["metadata"]["name"]
        for host in kube.model_hosts()
        if any(c["type"] == "Reporting" and c["status"] == "True" for c in host.get("status", {}).get("conditions", []))
    ]


def holders(kube: Kube) -> dict[str, list[str]]:
    """Return name of a model -> names of the ModelHosts that list it, sorted."""
    found: dict[str, list[str]] = defaultdict(list)
    for host in kube.model_hosts():
        for entry in host.get("status", {}).get("models", []):
            found[entry["name"]].append(host["metadata"]["name"])
    return {name: sorted(places) for name, places in found.items()}


def wait_replicas(kube: Kube, replicas: int = PODS, *, timeout: float = SETTLED_SECONDS) -> list[str]:
    """Wait until the pool has exactly this number of hosts and all report; return their names, oldest first."""

    def look() -> bool:
        return len(hosts(kube)) == replicas == len(reporting(kube))

    until(f"{replicas} hosts that report", look, timeout=timeout, state=kube.model_hosts)
    return hosts(kube)
