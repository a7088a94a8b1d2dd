"""Nodes that are being drained, or do not answer, and which objects have pods there.

Only what may be looked at: an operator that is limited to namespaces has no right to nodes, and knows of none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from plimsoll_cluster.keys import Key
from plimsoll_operator.spec.identity import Object


@dataclass(frozen=True, slots=True)
class Node:
    """`cordoned`: it takes no new pods, those it has are to go. `lost`: its kubelet does not say that it is well."""

    cordoned: bool
    lost: bool


def read_node(item: Object) -> Node:
    """From the API server's object."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    ready = next((c["status"] for c in conditions if c["type"] == "Ready"), "True")
    return Node(cordoned=bool((item.get("spec") or {}).get("unschedulable")), lost=ready != "True")


class NodeRegistry:
    """The nodes that are watched, and for each object those on which it was last seen to have pods."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._used: dict[Key, frozenset[str]] = {}

    @property
    def known(self) -> Mapping[str, Node]:
        """By name."""
        return self._nodes

    def note(self, name: str, now: Node) -> set[Key]:
        """Take note of a node; returns the objects to which it has become another one."""
        before = self._nodes.get(name, Node(cordoned=False, lost=False))
        self._nodes[name] = now
        return set() if now == before else self._users(name)

    def forget(self, name: str) -> set[Key]:
        """A node is gone."""
        return self._users(name) if self._nodes.pop(name, None) is not None else set()

    def note_use(self, key: Key, nodes: Iterable[str]) -> None:
        """Where an object has pods now."""
        used = frozenset(nodes)
        if used:
            self._used[key] = used
        else:
            self._used.pop(key, None)

    def _users(self, name: str) -> set[Key]:
        return {key for key, used in self._used.items() if name in used}
