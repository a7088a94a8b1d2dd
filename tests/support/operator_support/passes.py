"""Reconciles without an event loop, for servers that respond immediately, at a time that the test sets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from operator_support.objects import EPOCH

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.build.image import Image
from plimsoll_operator.canary.decision import TotalsSource
from plimsoll_operator.controller.model_reconciler import ModelReconciler
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.kube.expectations import Expectations
from plimsoll_operator.kube.leader_registry import LeaderRegistry
from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.planning.nodes import NodeRegistry
from plimsoll_operator.planning.upgrade_queue import UpgradeQueue
from plimsoll_operator.pools.model_placement import PlacementEvent


class NoPools:
    """No pool has a placement."""

    def placement(self, model: ObjectKey, pool: ObjectKey) -> None:
        """Return None: the placement is not known."""

    def untold(self, model: ObjectKey) -> list[PlacementEvent]:
        """Return no events."""
        return []

    def served_elsewhere(self, model: ObjectKey) -> None:
        """Do nothing."""


def reconciler_of(
    api: Any,
    stores: Stores,
    expectations: Expectations,
    nodes: NodeRegistry,
    *,
    now: Callable[[], float],
    wake: Callable[[ObjectKey], None] = lambda _: None,
    totals_of: TotalsSource = lambda key: None,
    image: str = "runtime:1",
    upgrades: int = 99,
    leaders: LeaderRegistry | None = None,
) -> ModelReconciler:
    """Return a reconciler that may act. `now`: seconds since the tests' epoch; `upgrades`: size of the upgrade
    queue.
    """
    names = NameRegistry()
    names.follow(stores.models, wake)
    context = ReconcileContext(
        api,
        stores,
        expectations,
        Image(image),
        names,
        nodes,
        "test",
        may_act=lambda: True,
        clock=lambda: EPOCH + timedelta(seconds=now()),
    )
    return ModelReconciler(
        context, UpgradeQueue(upgrades), wake=wake, placed_models=NoPools(), totals_of=totals_of, leaders=leaders
    )


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end; it must not wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")
