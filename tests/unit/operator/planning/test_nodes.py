"""Nodes that are being drained or do not respond, and the objects with pods on them."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll_cluster.keys import Key
from plimsoll_operator.planning.nodes import Node, NodeRegistry, read_node

WELL, DRAINED = Node(cordoned=False, lost=False), Node(cordoned=True, lost=False)
LOST = Node(cordoned=False, lost=True)
A, B = Key("ModelDeployment", "team", "a"), Key("ModelDeployment", "team", "b")


def item(name: str = "n1", *, cordoned: bool = False, ready: str | None = "True") -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready}] if ready else []
    spec = {"unschedulable": True} if cordoned else {}
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (item(), Node(cordoned=False, lost=False)),
        (item(cordoned=True), Node(cordoned=True, lost=False)),
        (item(ready="Unknown"), Node(cordoned=False, lost=True)),
        (item(ready="False"), Node(cordoned=False, lost=True)),
        (item(ready=None), Node(cordoned=False, lost=False)),
    ],
)
def test_what_is_read_of_a_node(found: dict[str, Any], expected: Node) -> None:
    assert read_node(found) == expected


def test_who_has_pods_there_hears_of_a_change_and_of_nothing_else() -> None:
    nodes = NodeRegistry()
    nodes.note_use(A, ["n1", "n2"])
    nodes.note_use(B, ["n2"])
    assert nodes.note("n1", WELL) == set(), "a heartbeat"
    assert nodes.note("n1", DRAINED) == {A}
    assert nodes.note("n1", DRAINED) == set()
    assert nodes.note("n2", LOST) == {A, B}
    nodes.note_use(A, [])
    assert nodes.forget("n2") == {B}
    assert nodes.forget("n2") == set()
    assert list(nodes.known) == ["n1"]
