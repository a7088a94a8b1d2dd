"""Which objects are reconciled when nodes change. Changes of all other kinds: kube/test_expectations.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from operator_support.objects import model

from plimsoll_cluster.keys import Key
from plimsoll_operator.controller.event_routing import merge_event, route_changes
from plimsoll_operator.kube.expectations import Expectations
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.planning.nodes import NodeRegistry
from plimsoll_operator.spec.identity import KIND


class Queue:
    """Records what is added."""

    def __init__(self) -> None:
        self.added: list[Key] = []

    def add(self, key: Key) -> None:
        self.added.append(key)

    def add_all(self, keys: Iterable[Key]) -> None:
        self.added += keys


def changed(kind: str, version: int, *, cordoned: bool = False) -> Any:
    metadata = {"name": "n1", "uid": "u", "resourceVersion": str(version)}
    return {"type": kind, "object": {"metadata": metadata, "spec": {"unschedulable": cordoned}}}


@pytest.mark.parametrize("namespaces", [None, ["team"]])
def test_a_drain_reaches_those_who_have_pods_there(namespaces: list[str] | None) -> None:
    stores, queue, nodes = Stores(namespaces, with_nodes=True), Queue(), NodeRegistry()
    route_changes(stores, queue, Expectations(), nodes)  # type: ignore[arg-type]
    gemma = Key(KIND, "team", "gemma")
    nodes.note_use(gemma, ["n1"])
    assert stores.nodes is not None
    part = stores.nodes.part_of("")
    part.take(changed("ADDED", 2))
    part.take(changed("MODIFIED", 3))
    assert queue.added == [], "a heartbeat"
    part.take(changed("MODIFIED", 4, cordoned=True))
    assert queue.added == [gemma]
    assert nodes.known["n1"].cordoned
    part.take(changed("DELETED", 5, cordoned=True))
    assert queue.added == [gemma, gemma]
    assert nodes.known == {}


def test_without_the_right_to_nodes_none_are_asked_for() -> None:
    assert "Node" not in {store.resource.kind for store in Stores(None).all()}


def break_down(_: object) -> None:
    raise RuntimeError("a bug")


@pytest.mark.parametrize("what", ["a listener that raises", "an object that cannot be read"])
def test_an_event_that_breaks_costs_a_list_and_a_pass(what: str) -> None:
    stores, queue = Stores(None), Queue()
    item = {**model("gemma"), "metadata": {**model("gemma")["metadata"], "resourceVersion": "7"}}
    part = stores.models.part_of("team")
    part.end_list(part.begin_list(), {}, 1)
    if what == "a listener that raises":
        stores.models.listen(break_down)
    else:
        del item["metadata"]["uid"]
    assert not part.outdated
    merge_event(stores.models, queue, {"type": "ADDED", "object": item})  # type: ignore[arg-type]
    assert queue.added == [Key(KIND, "team", "gemma")]
    assert part.outdated
