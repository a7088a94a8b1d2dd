"""/metrics and /demand, on a separate port that clients of the API cannot reach."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl

import msgspec

from plimsoll_gateway.demand.counters import DemandCounters
from plimsoll_gateway.errors.refusals import Refusal, bad_request, too_many_questions, unknown_path, wrong_method
from plimsoll_gateway.proxy.body import ClientGone, Message, Receive
from plimsoll_gateway.proxy.cancellation import Cancellations
from plimsoll_gateway.proxy.headers import request_id
from plimsoll_gateway.proxy.response_stream import ResponseStream, Send
from plimsoll_gateway.telemetry.metrics import Metrics
from plimsoll_telemetry.exposition import PATH as METRICS

MOST_SECONDS = 30.0
FARTHEST = 2**63 - 1

_ENCODER = msgspec.json.Encoder()


class _Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    after: Annotated[int, msgspec.Meta(ge=-1, le=FARTHEST)] = -1
    """The last sequence seen; -1 if none was."""
    wait: Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)] = 0.0
    """Seconds to wait for another sequence."""


def _read_query(query: bytes) -> _Query:
    try:
        return msgspec.convert(dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)), _Query, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(f"Invalid query, which may have 'after' and 'wait': {str(error)[:200]}.") from None


DEMAND = "/demand"
MOST_QUESTIONS = 64
"""The most requests for /demand that wait for changes; each operator sends one."""


async def show_metrics(stream: ResponseStream, metrics: Metrics, accept: bytes | None) -> None:
    """Answer a scrape, in the format that its header Accept prefers."""
    told = metrics.render(accept)
    await stream.whole(200, told.content_type.encode("ascii"), told.body)


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
        """Answer all requests that wait for changes of the demand: the process stops."""
        self._demand.end()

    async def _answer(self, scope: Message, receive: Receive, stream: ResponseStream) -> None:
        path = scope["path"]
        if path not in (METRICS, DEMAND):
            raise unknown_path(path)
        if scope["method"] not in ("GET", "HEAD"):
            raise wrong_method(scope["method"], path, "GET, HEAD")
        if path == METRICS:
            await show_metrics(stream, self._metrics, dict(scope["headers"]).get(b"accept"))
            return
        if len(self._questions) >= MOST_QUESTIONS:
            raise too_many_questions(MOST_QUESTIONS)
        with self._questions.hold(receive):
            query = _read_query(scope["query_string"])
            if query.wait:
                await self._demand.changed(query.after, query.wait)
            text = _ENCODER.encode(self._demand.report())
        await stream.whole(200, b"application/json", text)
