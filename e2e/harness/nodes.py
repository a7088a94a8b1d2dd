"""The cluster's nodes: which there are, and whether they answer."""

from __future__ import annotations

from typing import Any

from kubernetes import client

from harness.waiting import until


def names(*, cordoned: bool = False) -> list[str]:
    """Nodes that pods can be put on, by name; one that is silent for now is among them. With `cordoned` those too."""
    core: Any = client.CoreV1Api()
    found = [node for node in core.list_node().items if _takes(node) and (cordoned or not node.spec.unschedulable)]
    return sorted(node.metadata.name for node in found)


def _takes(node: Any) -> bool:
    """Whether no taint keeps pods away but those that the cluster itself gives and takes back."""
    return all(taint.key.startswith("node.kubernetes.io/") for taint in node.spec.taints or ())


def staying(own_cluster: bool) -> dict[str, Any]:
    """Of a pod template: keeps pods on the node that stays, where other scenarios may lose the other one meanwhile."""
    return {"nodeSelector": {"kubernetes.io/hostname": names(cordoned=True)[0]}} if own_cluster else {}


def is_ready(name: str) -> bool:
    """Whether the node controller takes a node for alive."""
    core: Any = client.CoreV1Api()
    return any(c.type == "Ready" and c.status == "True" for c in core.read_node(name).status.conditions)


def wait_ready(*names: str, timeout: float = 120) -> None:
    """Wait until nodes are alive and take pods again."""

    def look() -> bool:
        core: Any = client.CoreV1Api()
        return all(is_ready(name) and not core.read_node(name).spec.taints for name in names)

    until(f"{', '.join(names)} ready, without a taint", look, timeout=timeout)
