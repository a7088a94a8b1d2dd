"""A pool of runtime pods with small random models in it, and where those are."""

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
"""Seconds that a model stays awake at the least."""


def pool(replicas: int = PODS, *, memory: str = "2Gi", sleepers: str = "256Mi", residency: int = RESIDENCY) -> Object:
    """A pool. As it is, each pod has memory for eight of the models awake, and for all of them asleep."""
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
    """So many models of a scenario's own: what is served by a name is served in the whole cluster."""
    return [f"{scenario}-{number}" for number in range(count)]


def model(name: str, source: str = "", **spec: Any) -> Object:
    """A model of the pool; without a source that of its number on the volume."""
    base = {
        "model": {"source": source or f"pvc://{CLAIM}/{_folder(name)}"},
        "placement": {"pool": NAME},
        "runtime": RUNTIME,
    }
    return {"apiVersion": GROUP, "kind": "ModelDeployment", "metadata": {"name": name}, "spec": base | spec}


def provide_models(kube: Kube, folder: Path, names: list[str]) -> None:
    """Their files, which scenarios share by number, and a claim for them."""
    for name in names:
        write_tiny_model(folder / _folder(name), seed=_number(name))
    provide_volume(kube, folder)


def _folder(name: str) -> str:
    return f"tiny-{_number(name)}"


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def start(kube: Kube, folder: Path, names: list[str], **options: Any) -> None:
    """The pool with so many models, each of them ready."""
    provide_models(kube, folder, names)
    kube.apply(pool(**options))
    for name in names:
        kube.apply(model(name))
    for name in names:
        kube.wait_condition(name, "Ready", "True")


def states(kube: Kube, name: str) -> set[str]:
    """Those in which a model is on its hosts."""
    return {placement["state"] for placement in kube.model(name)["status"].get("placements", [])}


def places(kube: Kube, name: str) -> list[str]:
    """The hosts of a model, as its status has them."""
    return sorted(placement["host"] for placement in kube.model(name)["status"].get("placements", []))


def hosts(kube: Kube) -> list[str]:
    """The pods of the pool that have reported, oldest first."""
    found = sorted(
        kube.model_hosts(), key=lambda host: (host["metadata"]["creationTimestamp"], host["metadata"]["name"])
    )
    return [host["metadata"]["name"] for host in found]


def reporting(kube: Kube) -> list[str]:
    """Those of them whose reports are believed now."""
    return [
        host["metadata"]["name"]
        for host in kube.model_hosts()
        if any(c["type"] == "Reporting" and c["status"] == "True" for c in host.get("status", {}).get("conditions", []))
    ]


def holders(kube: Kube) -> dict[str, list[str]]:
    """Of each model, the hosts that say they have it."""
    found: dict[str, list[str]] = defaultdict(list)
    for host in kube.model_hosts():
        for entry in host.get("status", {}).get("models", []):
            found[entry["name"]].append(host["metadata"]["name"])
    return {name: sorted(places) for name, places in found.items()}


def wait_replicas(kube: Kube, replicas: int = PODS, *, timeout: float = SETTLED_SECONDS) -> list[str]:
    """Wait until so many pods are there and report, and return their names."""

    def look() -> bool:
        return len(hosts(kube)) == replicas == len(reporting(kube))

    until(f"{replicas} hosts that report", look, timeout=timeout, state=kube.model_hosts)
    return hosts(kube)
