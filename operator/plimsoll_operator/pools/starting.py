"""Hosts of a new pool report one after the other: what nobody asks for waits a little, so that it lies on all of them.

Models are moved later, too, but only where they lie far too close together; and each move fetches files again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from plimsoll_operator.identity import ObjectKey
from plimsoll_operator.observe import Pod
from plimsoll_operator.placement.action import Because, Place
from plimsoll_operator.placement.decision import Plan
from plimsoll_operator.placement.pool import PoolState

PATIENCE = timedelta(seconds=10)
"""Counted from when the first host was ready."""


def starting(pods: Iterable[Pod], now: datetime) -> str:
    """The hosts that run and are not ready yet, in words; "" where there are none, or some host was ready before.

    A clock that differs from the node's by more than `PATIENCE` ends the wait: it is never longer than twice that.
    """
    live = [pod for pod in pods if pod.live]
    ready = [pod for pod in live if pod.ready]
    late = [pod.name for pod in live if not pod.ready and pod.scheduled and not pod.leaving and pod.failure is None]
    if not late or not ready or any(abs(now - pod.moved) >= PATIENCE for pod in ready):
        return ""
    return f"hosts that start are waited for, {PATIENCE.seconds} s at most: {', '.join(sorted(late))}"


def first_places(plan: Plan, state: PoolState) -> frozenset[ObjectKey]:
    """The models that lie nowhere, and that the plan does no more for than place their files."""
    there = {copy.model for host in state.hosts for copy in host.models}
    files = {one.model for one in plan.actions if isinstance(one, Place) and one.because is Because.MISSING}
    more = {one.model for one in plan.actions if not (isinstance(one, Place) and one.because is Because.MISSING)}
    return frozenset(files - more - there)


def without(plan: Plan, models: frozenset[ObjectKey]) -> Plan:
    """The plan, but for these models: they are looked at again."""
    return msgspec.structs.replace(
        plan,
        actions=tuple(action for action in plan.actions if action.model not in models),
        placements=tuple(placement for placement in plan.placements if placement.model not in models),
    )
