"""`spec.scaling`: between which bounds a model scales, and what its replicas are to keep to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MIN_REPLICAS = 1
IDLE_SECONDS, UP_SECONDS, DOWN_SECONDS = 300, 0, 300
QUEUE = 4
"""The schema's defaults (a test compares), and the target where none is given."""


@dataclass(frozen=True, slots=True)
class Target:
    """None where nothing is asked. `queue`: requests that wait at a replica, `ttft`, `itl`: seconds, `kv`: a share."""

    queue: int | None = QUEUE
    ttft: float | None = None
    itl: float | None = None
    kv: float | None = None


@dataclass(frozen=True, slots=True)
class Scaling:
    """At least `least` and at most `most` replicas; `placed` stay where they are, asleep if need be.

    `idle`, `up`, `down`: seconds without a request before the last replica goes, for which more must have been needed,
    and for which fewer must have been enough.
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
        """The fewest that are ever wanted."""
        return max(self.least, self.placed)

    def clamped(self, replicas: int) -> int:
        """The nearest number within the bounds."""
        return min(self.most, max(self.floor, replicas))


def read_scaling(values: Mapping[str, Any] | None) -> Scaling | None:
    """From an object that the API server accepted."""
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
