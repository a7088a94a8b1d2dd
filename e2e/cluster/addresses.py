"""The address plan. All addresses exist only inside the namespaces; the host's own interfaces are not changed.

The ranges are reserved for documentation (nodes) and benchmarks (pods, services), so they cannot conflict with real
ones.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTROL_PLANE = "192.0.2.1"
NODE_PREFIX = 24
PODS = "198.18.0.0/16"
SERVICES = "198.19.0.0/16"
API_SERVICE = "198.19.0.1"
DNS_SERVICE = "198.19.0.10"
API_PORT = 6443
REGISTRY_PORT = 5000


@dataclass(frozen=True)
class Node:
    """A worker. Its number is the last part of its address and the third part of its pods' subnet."""

    name: str
    number: int

    @property
    def address(self) -> str:
        return f"192.0.2.{self.number}"

    @property
    def pods(self) -> str:
        return f"198.18.{self.number}.0/24"


NODES = (Node("n1", 11), Node("n2", 12))
