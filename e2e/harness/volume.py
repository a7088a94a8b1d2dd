"""A claim for models that lie in a folder of the nodes."""

from __future__ import annotations

from pathlib import Path

from harness.kube import Kube

CLAIM = "tiny-model"


def provide_volume(kube: Kube, folder: Path) -> None:
    """The claim in a namespace, bound to a folder that all nodes share."""
    name = f"{kube.namespace}-{CLAIM}"
    capacity = {"storage": "1Gi"}
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": capacity,
                "accessModes": ["ReadOnlyMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": name,
                "hostPath": {"path": str(folder)},
            },
        }
    )
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": kube.namespace},
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": name,
                "resources": {"requests": capacity},
            },
        }
    )
