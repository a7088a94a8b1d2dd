"""What the pass over a ModelDeployment asks of pools, and what becomes of its own pods when it moves into one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from plimsoll_operator.common import Common
from plimsoll_operator.identity import ObjectKey
from plimsoll_operator.observe import Pod
from plimsoll_operator.outcome import A_MOMENT, Outcome
from plimsoll_operator.plan import DeletePod
from plimsoll_operator.pools.picture import Picture, Told, shown
from plimsoll_operator.pools.problem import Problem
from plimsoll_operator.reasons import Reason


class Pooled(Protocol):
    """Knows where models with placement are."""

    def picture(self, model: ObjectKey, pool: ObjectKey) -> Picture | None:
        """Where a model is in its pool; None while that is not known yet."""

    def untold(self, model: ObjectKey) -> list[Told]:
        """Decisions about a model that no event tells of yet; the caller tells them."""

    def served_elsewhere(self, model: ObjectKey) -> None:
        """A model answers where it is to be: pools that it has left may let it go."""


class NoPools:
    """For an operator that serves none."""

    def picture(self, model: ObjectKey, pool: ObjectKey) -> Picture | None:
        """Nowhere."""
        why = Problem(Reason.POOL_NOT_FOUND, "this operator serves no RuntimePools")
        return Picture(shown(model, pool), problem=why)

    def untold(self, model: ObjectKey) -> list[Told]:
        """None."""
        return []

    def served_elsewhere(self, model: ObjectKey) -> None:
        """Nobody has it."""


NO_POOLS = NoPools()


def unknown_pool(common: Common, pool: ObjectKey) -> Outcome:
    """When to look again at a model of whose pool nothing is known yet; a pool that is there wakes its models."""
    return Outcome(again=A_MOMENT if common.caches.pools.get(pool) is None else None)


def plan_own(pods: Iterable[Pod], *, answered: bool, pool: str) -> list[DeletePod]:
    """Which pods of its own go: those that do not serve at once, the others when its pool answers for it."""
    going = [pod for pod in pods if not pod.stopping and (answered or not (pod.ready or pod.cut_off))]
    return [DeletePod(pod.name, pod.uid, f"RuntimePool {pool} serves its model") for pod in going]
