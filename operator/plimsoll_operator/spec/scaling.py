"""`spec.scaling`: bounds of a model's replicas, and the targets of each replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MIN_REPLICAS = 1
IDLE_SECONDS, UP_SECONDS, DOWN_SECONDS = 300, 0, 300
QUEUE = 4
"""The target if none is given. A test compares these values with the CRD schema's defaults."""


@dataclass(frozen=True, slots=True)
class Target:
    """Targets of each replica, None if not set. `queue`: waiting requests; `ttft`, `itl`: seconds; `kv`: share of the
    KV cache, from 0 to 1.
    """

    queue: int | None = QUEUE
    ttft: float | None = None
    itl: float | None = None
    kv: float | None = None


@dataclass(frozen=True, slots=True)
class Scaling:
    """Between `least` and `most` replicas, of which `placed` always have a host, asleep if unused.

    `idle`: seconds without requests before scaling to zero. `up`, `down`: seconds for which more must have been needed,
    or fewer must have sufficed, before the number changes.
    """

    least: int = MIN_REPLICAS
    most: int = 1
    idle: int = IDLE_SECONDS
    up: int = UP_SECONDS
    down: int = DOWN_SECONDS
    target: Target = Target()
    placed: int = 0

    @property
    def floor(self) -> int:
        """The lowest number that is ever wanted."""
        return max(self.least, self.placed)

    def clamped(self, replicas: int) -> int:
        """Return the nearest number within the bounds."""
        return min(self.most, max(self.floor, replicas))


def read_scaling(values: Mapping[str, Any] | None) -> Scaling | None:
    """Read the scaling of an object that the API server accepted; None if it has none."""
    if values is None:
        return None
    return Scaling(
        least=values.get("minReplicas", MIN_REPLICAS),
        most=values["maxReplicas"],
        idle=values.get("idleSeconds", IDLE_SECONDS),
        up=values.get("scaleUpSeconds", UP_SECONDS),
        down=values.get("scaleDownSeconds", DOWN_SECONDS),
        target=_target(values.get("target") or {}),
    )


def _target(values: Mapping[str, Any]) -> Target:
    if not values:
        return Target()
    kv = values.get("kv")
    return Target(
        queue=values.get("queue"),
        ttft=_seconds(values.get("ttftMilliseconds")),
        itl=_seconds(values.get("itlMilliseconds")),
        kv=int(kv.removesuffix("%")) / 100 if kv is not None else None,
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
