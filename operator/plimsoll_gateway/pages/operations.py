"""/metrics and /demand, on a separate port that clients of the API cannot reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec

from plimsoll_gateway.demand.counters import DemandCounters
from plimsoll_gateway.errors.refusals import Refusal, bad_request, too_many_questions, unknown_path, wrong_method
from plimsoll_gateway.proxy.body import ClientGone, Message, Receive
from plimsoll_gateway.proxy.cancellation import Cancellations
from plimsoll_gateway.proxy.headers import request_id
from plimsoll_gateway.proxy.response_stream import ResponseStream, Send
from plimsoll_gateway.telemetry.metrics import CONTENT_TYPE, Metrics

MOST_SECONDS = 30.0
FARTHEST = 2**63 - 1

NumberT = TypeVar("NumberT", int, float)
_ENCODER = msgspec.json.Encoder()


async def demand_page(demand: DemandCounters, query: bytes) -> bytes:
    """Return the demand as JSON, after its sequence differs from `after` or `wait` seconds have passed.

    Raises Refusal 400.
    """
    after, wait = read_query(query)
    if wait:
        await demand.changed(after, wait)
    return _ENCODER.encode(demand.report())


def read_query(query: bytes) -> tuple[int, float]:
    """Parse `after` (default -1, before any sequence) and `wait` (default 0). Raises Refusal 400."""
    given = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    if unknown := sorted(set(given) - {"after", "wait"}):
        raise bad_request(
            f"/demand has no parameter '{unknown[0][:64]}'; it has 'after' and 'wait'.", param=unknown[0][:64]
        )
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


METRICS, DEMAND = "/metrics", "/demand"
MOST_QUESTIONS = 64
"""The most requests for /demand that wait for changes; each operator sends one."""


class Operations:
    """An ASGI application: /metrics and /demand."""

    def __init__(self, metrics: Metrics, demand: DemandCounters) -> None:
        self._metrics = metrics
        self._demand = demand
        self._questions = Cancellations()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        stream = ResponseStream(send, request_id(None))
        try:
            await self._answer(scope, receive, stream)
        except Refusal as refusal:
            await stream.fail(refusal)
        except ClientGone:
            return

    def end(self) -> None:
        """Answer all waiting requests: the process stops."""
        self._demand.end()

    async def _answer(self, scope: Message, receive: Receive, stream: ResponseStream) -> None:
        path = scope["path"]
        if path not in (METRICS, DEMAND):
            raise unknown_path(path)
        if scope["method"] not in ("GET", "HEAD"):
            raise wrong_method(scope["method"], path, "GET, HEAD")
        if path == METRICS:
            await stream.whole(200, CONTENT_TYPE, self._metrics.render())
            return
        if len(self._questions) >= MOST_QUESTIONS:
            raise too_many_questions(MOST_QUESTIONS)
        with self._questions.hold(receive):
            text = await demand_page(self._demand, scope["query_string"])
        await stream.whole(200, b"application/json", text)
