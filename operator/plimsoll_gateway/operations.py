"""What operators and scrapers are told, on a port of its own: clients of the API never reach it."""

from __future__ import annotations

from plimsoll_gateway.body import ClientGone, Message, Receive
from plimsoll_gateway.caller import caller_of
from plimsoll_gateway.demand.ledger import Demand
from plimsoll_gateway.demand.page import demand_page
from plimsoll_gateway.errors import Refusal, too_many_questions, unknown_path, wrong_method
from plimsoll_gateway.headers import request_id
from plimsoll_gateway.lifeline import Lifelines
from plimsoll_gateway.metrics import CONTENT_TYPE, Metrics
from plimsoll_gateway.stream import Send, Stream

METRICS, DEMAND = "/metrics", "/demand"
MOST_QUESTIONS = 64
"""Requests for /demand that may wait for news at once: each operator asks one."""


class Operations:
    """An ASGI application: /metrics and /demand."""

    def __init__(self, metrics: Metrics, demand: Demand) -> None:
        self._metrics = metrics
        self._demand = demand
        self._questions = Lifelines()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        stream = Stream(send, request_id(None))
        try:
            await self._answer(scope, receive, stream)
        except Refusal as refusal:
            await stream.fail(refusal)
        except ClientGone:
            return

    def end(self) -> None:
        """Answer whoever waits for news: the process stops."""
        self._demand.end()

    async def _answer(self, scope: Message, receive: Receive, stream: Stream) -> None:
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
        with self._questions.hold(receive, caller_of(scope)):
            text = await demand_page(self._demand, scope["query_string"])
        await stream.whole(200, b"application/json", text)
