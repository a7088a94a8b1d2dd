"""Volume claims for folders on the nodes: for models, and for data of pods."""

from __future__ import annotations

from pathlib import Path

from harness.kube import Kube

CLAIM = "tiny-model"


def provide_volume(kube: Kube, folder: Path) -> None:
    """Create the claim for models in a namespace, bound to a folder that all nodes share."""
    _bind(kube, CLAIM, folder, "ReadOnlyMany")


def provide_store(kube: Kube, folder: Path, claim: str) -> None:
    """Create a claim that all pods of a namespace may write to, bound to its own folder that all nodes share."""
    own = folder / kube.namespace / claim
    own.mkdir(parents=True)
    own.chmod(0o777)  # fsGroup does not apply to folders of a node
    _bind(kube, claim, own, "ReadWriteMany")


def _bind(kube: Kube, claim: str, folder: Path, mode: str) -> None:
    name = f"{kube.namespace}-{claim}"
    capacity = {"storage": "1Gi"}
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": capacity,
                "accessModes": [mode],
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
            "metadata": {"name": claim, "namespace": kube.namespace},
            "spec": {"accessModes": [mode], "storageClassName": name, "resources": {"requests": capacity}},
        }
    )
