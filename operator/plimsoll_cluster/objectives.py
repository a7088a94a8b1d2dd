"""`spec.objectives` of a ModelDeployment: what users of the model may rely on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll_cluster.keys import Object

AVAILABILITY, FIRST_TOKEN, INTER_TOKEN = "availability", "first_token", "inter_token"
LATENCY_SHARE = "95%"
"""The share of a latency objective that has none: the one of `spec.scaling.target`."""


@dataclass(frozen=True, slots=True)
class LatencyObjective:
    """`share` (between 0 and 1) of streamed answers keep `seconds`."""

    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Objectives:
    """The objectives of a model; None if there is no such objective.

    `availability`: the share of requests that are answered, between 0 and 1. `first_token`: seconds to the first event
    of a streamed answer. `inter_token`: mean seconds between two of its events.
    """

    availability: float | None = None
    first_token: LatencyObjective | None = None
    inter_token: LatencyObjective | None = None

    def all(self) -> Iterator[tuple[str, float, float | None]]:
        """Yield name, share, and seconds (None for availability) of each objective."""
        if self.availability is not None:
            yield AVAILABILITY, self.availability, None
        for name, objective in ((FIRST_TOKEN, self.first_token), (INTER_TOKEN, self.inter_token)):
            if objective is not None:
                yield name, objective.share, objective.seconds


NO_OBJECTIVES = Objectives()


def read_objectives(spec: Object) -> Objectives:
    """Read the objectives of a spec that the API server accepted. Times that it leaves out are those of
    `scaling.target`.
    """
    own = spec.get("objectives") or {}
    target = (spec.get("scaling") or {}).get("target") or {}
    availability = own.get("availability")
    return Objectives(
        None if availability is None else _share(availability),
        _latency(own, target, "ttft"),
        _latency(own, target, "itl"),
    )


def _latency(own: Object, target: Object, kind: str) -> LatencyObjective | None:
    field = f"{kind}Milliseconds"
    milliseconds = own.get(field, target.get(field))
    if milliseconds is None:
        return None
    return LatencyObjective(milliseconds / 1000, _share(own.get(f"{kind}Share", LATENCY_SHARE)))


def _share(text: str) -> float:
    """Return a percentage as a share: 0.999 for 99.9%."""
    return round(float(text.removesuffix("%")) / 100, 5)
