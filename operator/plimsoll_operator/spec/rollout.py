"""`spec.rollout`: how many pods may exist beyond `replicas`, how many may be missing, and the progress deadline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from plimsoll_operator.spec.canary import CanarySpec, read_canary_spec

Amount = int | str
"""A number of pods, or a share of `replicas` such as 25%."""

SURGE = 1
UNAVAILABLE = 1
PROGRESS_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Rollout:
    """`spec.rollout`. By default one pod may be missing, but not the only one.

    `takes_over`: a new pod continues with the stored data of an old one, so it is created after that one is gone.
    """

    max_surge: Amount = SURGE
    max_unavailable: Amount | None = None
    progress_seconds: int = PROGRESS_SECONDS
    canary: CanarySpec | None = None
    takes_over: bool = False

    def surge(self, replicas: int) -> int:
        """Return how many pods may exist beyond `replicas`. A share is rounded up."""
        return _resolved(self.max_surge, replicas, math.ceil)

    def unavailable(self, replicas: int) -> int:
        """Return how many pods may be missing. A share is rounded down; without surge it is at least one, or nothing
        could change.
        """
        if self.max_unavailable is None:
            found = min(UNAVAILABLE, max(0, replicas - 1))
        else:
            found = _resolved(self.max_unavailable, replicas, math.floor)
        return min(replicas, max(found, 0 if self.surge(replicas) else 1))

    def least_ready(self, replicas: int) -> int:
        """Return how many pods must serve for the model to be ready."""
        return max(1, replicas - self.unavailable(replicas))

    def one_after_the_other(self) -> Rollout:
        """Return this rollout without surge and with `takes_over`: a new pod is created after an old one is gone."""
        return replace(self, max_surge=0, takes_over=True)


def read_rollout(values: Mapping[str, Any]) -> Rollout:
    """Read the rollout of an object that the API server accepted."""
    return Rollout(
        max_surge=values.get("maxSurge", SURGE),
        max_unavailable=values.get("maxUnavailable"),
        progress_seconds=values.get("progressDeadlineSeconds", PROGRESS_SECONDS),
        canary=read_canary_spec(values.get("canary")),
    )


def _resolved(amount: Amount, replicas: int, rounded: Callable[[float], int]) -> int:
    if isinstance(amount, int):
        return amount
    return rounded(int(amount.removesuffix("%")) * replicas / 100)
