"""`GET /demand`: at once, or when there is news."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec

from plimsoll_gateway.demand.ledger import Demand
from plimsoll_gateway.errors import bad_request

MOST_SECONDS = 30.0
FARTHEST = 2**63 - 1

NumberT = TypeVar("NumberT", int, float)
_ENCODER = msgspec.json.Encoder()


async def demand_page(demand: Demand, query: bytes) -> bytes:
    """The report as JSON, once its sequence is another than `after`, or `wait` seconds have passed.

    Raises Refusal 400.
    """
    after, wait = read_query(query)
    if wait:
        await demand.changed(after, wait)
    return _ENCODER.encode(demand.report())


def read_query(query: bytes) -> tuple[int, float]:
    """`after` (-1 where it is not given: nobody has seen anything) and `wait` (0). Raises Refusal 400."""
    given = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    if unknown := sorted(set(given) - {"after", "wait"}):
        raise bad_request(f"/demand takes 'after' and 'wait', and not '{unknown[0][:64]}'.", param=unknown[0][:64])
    return _number(given, "after", int, -1, FARTHEST), _number(given, "wait", float, 0.0, MOST_SECONDS)


def _number(given: dict[str, str], name: str, kind: Callable[[str], NumberT], least: NumberT, most: NumberT) -> NumberT:
    text = given.get(name)
    if text is None:
        return least
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        raise bad_request(f"'{name}' must be a number from {least} to {most}, not {text[:64]!r}.", param=name)
    return value
