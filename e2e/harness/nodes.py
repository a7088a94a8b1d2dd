"""The cluster's nodes, and whether they are alive."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from kubernetes import client

from harness.waiting import until


def names(*, cordoned: bool = False) -> list[str]:
    """Return the names of nodes that can run pods, including unresponsive ones; with `cordoned` also cordoned ones."""
    core: Any = client.CoreV1Api()
    found = [node for node in core.list_node().items if _takes(node) and (cordoned or not node.spec.unschedulable)]
    return sorted(node.metadata.name for node in found)


def _takes(node: Any) -> bool:
    """Return whether the node has no taints except those that the cluster itself manages."""
    return all(taint.key.startswith("node.kubernetes.io/") for taint in node.spec.taints or ())


def staying(own_cluster: bool) -> dict[str, Any]:
    """Return fields of a pod template that keep pods on the first node, which no scenario stops; empty on a given
    cluster, whose nodes all keep running.
    """
    return {"nodeSelector": {"kubernetes.io/hostname": names(cordoned=True)[0]}} if own_cluster else {}


def is_ready(name: str) -> bool:
    """Return whether the node controller considers a node alive."""
    core: Any = client.CoreV1Api()
    return any(c.type == "Ready" and c.status == "True" for c in core.read_node(name).status.conditions)


def wait_ready(*names: str, timeout: float = 120) -> None:
    """Wait until nodes are alive and accept pods."""

    def look() -> bool:
        core: Any = client.CoreV1Api()
        return all(is_ready(name) and not core.read_node(name).spec.taints for name in names)

    until(f"{', '.join(names)} ready, without a taint", look, timeout=timeout)


@contextlib.contextmanager
def labelled(labels: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """Add labels to nodes (node -> labels) within the context. The nodes must not have labels of these keys before."""
    core: Any = client.CoreV1Api()
    try:
        for node, added in labels.items():
            core.patch_node(node, {"metadata": {"labels": dict(added)}})
        yield
    finally:
        for node, added in labels.items():
            core.patch_node(node, {"metadata": {"labels": dict.fromkeys(added)}})
