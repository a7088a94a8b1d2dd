"""Passes without an event loop, for servers that answer at once, at a time that the test says."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from operator_support.objects import EPOCH

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.build.image import Image
from plimsoll_operator.canary.decision import Sightings, nobody_tells
from plimsoll_operator.controller.model_reconciler import Reconciler
from plimsoll_operator.kube.context import Common
from plimsoll_operator.kube.expectations import Expectations
from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.kube.stores import Caches
from plimsoll_operator.planning.nodes import NodeRegistry
from plimsoll_operator.planning.upgrade_queue import Turns


def reconciler_of(
    api: Any,
    caches: Caches,
    expectations: Expectations,
    nodes: NodeRegistry,
    *,
    now: Callable[[], float],
    wake: Callable[[ObjectKey], None] = lambda _: None,
    sightings: Sightings = nobody_tells,
    image: str = "runtime:1",
    turns: int = 99,
) -> Reconciler:
    """One that may act; `now` counts seconds since the epoch of the tests, `turns` is how many may roll at a time."""
    names = NameRegistry()
    names.follow(caches.models, wake)
    common = Common(
        api,
        caches,
        expectations,
        Image(image),
        names,
        nodes,
        "test",
        may_act=lambda: True,
        clock=lambda: EPOCH + timedelta(seconds=now()),
    )
    return Reconciler(common, Turns(turns), wake=wake, sightings=sightings)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """To its end: nothing in it waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")
