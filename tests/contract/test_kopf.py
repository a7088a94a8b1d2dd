"""kopf is required by the operator's distribution, and has handlers for every kind that users write."""

from __future__ import annotations

from importlib.metadata import requires
from typing import Any, cast

import kopf
from kubernetes.aio import client

from plimsoll_cluster.connection import Connection
from plimsoll_operator.controller.controller import Controller
from plimsoll_operator.handlers import register
from plimsoll_operator.kube.stores import Stores


def registered() -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    register(cast(Controller, None), Connection(client.Configuration(host="http://127.0.0.1")), registry)
    return registry


def test_the_operators_distribution_requires_kopf() -> None:
    found = [line for line in requires("plimsoll-serving") or [] if line.startswith("kopf")]
    assert any("extra == 'operator'" in line for line in found)


def test_every_kind_that_people_write_has_a_handler() -> None:
    handlers: Any = registered()._watching.get_all_handlers()
    watched = {(handler.selector.group, handler.selector.version, handler.selector.any_name) for handler in handlers}
    wanted = set()
    for store in Stores(None).primaries():
        _, group, version = store.resource.base.lstrip("/").split("/")
        wanted.add((group, version, store.resource.plural))
    assert watched == wanted


def test_no_handler_makes_kopf_write_to_objects() -> None:
    registry = registered()
    others: list[Any] = [registry._changing, registry._spawning, registry._indexing, registry._webhooks]
    assert [list(kinds.get_all_handlers()) for kinds in others] == [[], [], [], []]
