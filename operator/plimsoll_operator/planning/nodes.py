"""Nodes that are being drained or do not respond, and the objects that have pods on them.

An operator that is limited to namespaces may not read nodes; its registry stays empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from plimsoll_cluster.keys import Key
from plimsoll_operator.spec.identity import Object


@dataclass(frozen=True, slots=True)
class Node:
    """`cordoned`: it takes no new pods, and its pods should move. `lost`: its kubelet does not report it ready. Nodes
    that differ only in `labels` are equal, because a change of these needs no reconcile.
    """

    cordoned: bool
    lost: bool
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)


def read_node(item: Object) -> Node:
    """Read a Node of the API server."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    ready = next((c["status"] for c in conditions if c["type"] == "Ready"), "True")
    cordoned = bool((item.get("spec") or {}).get("unschedulable"))
    return Node(cordoned, ready != "True", item["metadata"].get("labels") or {})


class NodeRegistry:
    """The watched nodes, and for each object the nodes on which it last had pods."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._used: dict[Key, frozenset[str]] = {}

    @property
    def known(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return self._nodes

    def note(self, name: str, now: Node) -> set[Key]:
        """Store a node. Return the objects with pods on it if `cordoned` or `lost` has changed, else none."""
        before = self._nodes.get(name, Node(cordoned=False, lost=False))
        self._nodes[name] = now
        return set() if now == before else self._users(name)

    def forget(self, name: str) -> set[Key]:
        """Remove a node. Return the objects with pods on it."""
        return self._users(name) if self._nodes.pop(name, None) is not None else set()

    def note_use(self, key: Key, nodes: Iterable[str]) -> None:
        """Store the nodes on which an object has pods."""
        used = frozenset(nodes)
        if used:
            self._used[key] = used
        else:
            self._used.pop(key, None)

    def _users(self, name: str) -> set[Key]:
        return {key for key, used in self._used.items() if name in used}
