"""How much a model is asked for, over all gateways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll_operator.identity import ObjectKey
from plimsoll_operator.scaling.book import KEPT_SECONDS, GatewayBook
from plimsoll_operator.scaling.demand import Demand, ModelDemand


@dataclass(frozen=True, slots=True)
class Load:
    """`requests` are there now, of which some may wait for a replica. `idle`: seconds since the last one came, or was
    there; None where none ever did, as far as is known.
    """

    requests: int = 0
    idle: float | None = None

    def is_active(self, seconds: float) -> bool:
        """Whether a request is there, or came within so many seconds."""
        return self.requests > 0 or (self.idle is not None and self.idle <= seconds)


class Loads:
    """Of all models, by the last answer of each gateway that still counts."""

    def __init__(self, book: GatewayBook) -> None:
        self._book = book
        self._said: dict[str, dict[ObjectKey, ModelDemand]] = {}  # by the process that said it

    def told(self, answer: Demand) -> None:
        """A gateway's answer was believed."""
        self._said[answer.instance] = {entry.key: entry for entry in answer.models}
        kept = {gateway.answer.instance for gateway in self._book if gateway.answer is not None}
        for instance in self._said.keys() - kept:
            del self._said[instance]

    def of(self, model: ObjectKey, now: float) -> Load:
        """One model's. Clocks need not agree: each answer tells its own time."""
        requests, idle = 0, None
        for gateway in self._book:
            answer = gateway.answer
            if answer is None or now - gateway.heard > KEPT_SECONDS:
                continue
            entry = self._said.get(answer.instance, NOTHING).get(model)
            if entry is None:
                continue
            requests += entry.in_flight
            if entry.last_asked is not None:
                since = max(0.0, answer.time - entry.last_asked) + now - gateway.heard
                idle = since if idle is None else min(idle, since)
        return Load(requests, 0.0 if requests else idle)


NOTHING: Mapping[ObjectKey, ModelDemand] = {}
