"""What gateways have counted of a model's revisions, from their last answers: what canaries are judged by."""

from __future__ import annotations

from collections.abc import Callable

from plimsoll_operator.canary.conductor import Sightings
from plimsoll_operator.canary.evidence import Totals
from plimsoll_operator.canary.seen import Seen
from plimsoll_operator.identity import ObjectKey
from plimsoll_operator.scaling.book import GatewayBook
from plimsoll_operator.scaling.demand import Demand, RevisionDemand


def sightings_of(book: GatewayBook, clock: Callable[[], float]) -> Sightings:
    """Totals by gateway process and revision; None while no gateway is heard."""

    def totals(key: ObjectKey) -> Totals | None:
        answers = book.believed(clock())
        return {answer.instance: _of_model(answer, key) for answer in answers} if answers else None

    return totals


def _of_model(answer: Demand, key: ObjectKey) -> dict[str, Seen]:
    found = (m for m in answer.models if m.name == key.name and m.namespace == key.namespace)
    return {entry.revision: _seen(entry) for model in found for entry in model.revisions}


def _seen(entry: RevisionDemand) -> Seen:
    """What gave no answer, and what broke off, has failed."""
    return Seen(entry.requests, entry.errors + entry.broken, entry.first_byte.count, entry.first_byte.buckets)
