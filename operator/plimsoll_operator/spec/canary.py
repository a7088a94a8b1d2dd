"""`spec.rollout.canary`: steps of weight and pause, and the terms of a rollback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

ERROR_RATE = "1%"
LATENCY_INCREASE = "100%"
LEAST_REQUESTS = 50
PAUSE_SECONDS = 300
FINGERPRINT_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Step:
    """`weight` per cent of requests for at least `pause_seconds`, or, if `paused`, until the spec changes."""

    weight: int
    pause_seconds: int = PAUSE_SECONDS
    paused: bool = False


@dataclass(frozen=True, slots=True)
class CanarySpec:
    """`max_error_rate`: the share of requests that may fail; the stable pods' share if that is higher.

    `max_latency_increase`: by which share of the stable pods' time to first byte the canary may be slower.
    `least_requests`: requests to the canary, failed ones included, that a step must have seen before the next one.
    """

    steps: tuple[Step, ...]
    max_error_rate: float
    max_latency_increase: float
    least_requests: int

    @property
    def fingerprint(self) -> str:
        """A hash of the terms. A revision that was rolled back under these terms may be tried again under others."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_DIGITS]


def read_canary_spec(values: Mapping[str, Any] | None) -> CanarySpec | None:
    """Read the canary of an object that the API server accepted; None if it has none."""
    if values is None:
        return None
    return CanarySpec(
        steps=tuple(_step(step) for step in values["steps"]),
        max_error_rate=share(values.get("maxErrorRate", ERROR_RATE)),
        max_latency_increase=share(values.get("maxLatencyIncrease", LATENCY_INCREASE)),
        least_requests=values.get("minRequests", LEAST_REQUESTS),
    )


def share(text: str) -> float:
    """Return a percentage as a share: 0.025 for 2.5%."""
    return float(text.removesuffix("%")) / 100


def _step(values: Mapping[str, Any]) -> Step:
    return Step(values["weight"], values.get("pauseSeconds", PAUSE_SECONDS), values.get("paused", False))
