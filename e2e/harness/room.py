"""Limits the number of pods that fit on nodes, with placeholder pods.

The limited resource is local storage, which no other scenario requests, so that others may run at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes import client
from kubernetes.utils import parse_quantity

from harness.idle_pod import idle_pod
from harness.kube import PREFIX, Kube

STORAGE = "ephemeral-storage"
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Room:
    """Nodes with room for a number of pods that each request `storage` (`spec.resources.ephemeralStorage`)."""

    kube: Kube
    storage: str

    def open(self, node: str) -> None:
        """Remove the limit of a node."""
        self.kube.kill_now(_placeholder(node))


def limit(kube: Kube, image: str, seats: Mapping[str, int]) -> Room:
    """Create placeholders so that `seats` (node -> number) more pods fit. A node without its placeholder has room for
    at least one more than the largest number of seats.
    """
    free = {node: _free(node) for node in seats}
    size = min(free.values()) // (max(seats.values()) + 2)
    for node, number in seats.items():
        rest = {STORAGE: f"{(free[node] - number * size - size // 2) // MIB}Mi"}
        kube.apply(idle_pod(_placeholder(node), image, node=node, requests=rest))
    for node in seats:
        kube.wait_running(_placeholder(node))
    return Room(kube, f"{size // MIB}Mi")


def _free(node: str) -> int:
    """Return the bytes of a node's storage that no pod requests, except for pods of scenarios: those of an earlier test
    may still be terminating, and placeholders wait for them.
    """
    core: Any = client.CoreV1Api()
    pods = core.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={node}").items
    here = [pod for pod in pods if not pod.metadata.namespace.startswith(PREFIX)]
    containers = [c for pod in here if pod.status.phase in ("Pending", "Running") for c in pod.spec.containers]
    requested = sum(_bytes(((c.resources and c.resources.requests) or {}).get(STORAGE, 0)) for c in containers)
    return _bytes(core.read_node(node).status.allocatable[STORAGE]) - requested


def _bytes(quantity: str | int) -> int:
    parse: Any = parse_quantity
    return int(parse(quantity))


def _placeholder(node: str) -> str:
    return f"placeholder-{node}"
