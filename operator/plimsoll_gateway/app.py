"""The gateway as an ASGI application: which path is what, and what every request has in common.

Plain ASGI rather than a framework: on the path of every token, a framework costs more than all of this code.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any
from urllib.parse import quote

import aiohttp

from plimsoll_gateway.body import Body, ClientGone, Message, Receive, read_body
from plimsoll_gateway.budget import SMALL_BYTES, Budget
from plimsoll_gateway.catalog import model_list, one_model
from plimsoll_gateway.errors import Refusal, internal_error, shutting_down, two_lengths, unknown_path, wrong_method
from plimsoll_gateway.headers import request_id
from plimsoll_gateway.lifeline import Lifelines
from plimsoll_gateway.limits import Limits
from plimsoll_gateway.metrics import CLIENT_GONE, CONTENT_TYPE, Metrics, labels_of
from plimsoll_gateway.model_name import model_name
from plimsoll_gateway.pick import Picker
from plimsoll_gateway.probe import Prober
from plimsoll_gateway.relay import Relay, find_model
from plimsoll_gateway.room import Room
from plimsoll_gateway.stream import Send, Stream
from plimsoll_gateway.table import Model, TableStore
from plimsoll_gateway.turns import Turns
from plimsoll_gateway.upstream import Call, is_alive

log = logging.getLogger(__name__)

METRICS = "/metrics"
OWN = frozenset(["/v1/models", "/health", "/live", METRICS])
MODEL_PREFIX = "/v1/models/"
JSON = b"application/json"


class Gateway:
    """One OpenAI endpoint for all models of the table."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        store: TableStore,
        picker: Picker,
        limits: Limits,
        *,
        metrics_apart: bool = False,
    ) -> None:
        """`metrics_apart`: /metrics is not among these paths; serve `metrics_page` elsewhere."""
        self._store = store
        self._own_paths = OWN - {METRICS} if metrics_apart else OWN
        self._body_bytes = limits.body_bytes
        self._metrics = Metrics(store)
        self._budget = Budget(limits.held_bytes, self._metrics)
        self._turns = Turns()
        self._room = Room(limits.waiting, self._metrics)
        self._prober = Prober(partial(is_alive, session), store, picker, self._metrics)
        self._relay = Relay(session, store, picker, self._prober, self._metrics)
        self._running = Lifelines()
        self._draining = False

    async def watch_replicas(self) -> None:
        """Find those that hang, for ever."""
        await self._prober.run()

    def drain(self) -> None:
        """Report not healthy from now on, so that load balancers look elsewhere; go on serving."""
        self._draining = True

    def cut(self) -> None:
        """End what still runs, each answer with an error."""
        self._running.cut_all(shutting_down)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request (uvicorn is configured to send nothing but HTTP)."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        stream = Stream(send, request_id(headers.get(b"x-request-id")))
        exchange = Exchange(scope, headers, receive, stream)
        try:
            await self._answer(exchange)
        except Refusal as refusal:
            await stream.fail(refusal)
        except ClientGone:
            if not stream.said_all:  # many clients hang up as soon as they have read the last event
                exchange.code = CLIENT_GONE
        except Exception:
            log.exception("%s: unexpected error", stream.request_id)
            await stream.fail(internal_error())
        finally:
            code = exchange.code or stream.status or CLIENT_GONE
            self._metrics.requests.labels(*labels_of(exchange.model), str(code)).inc()

    async def metrics_page(self, scope: Message, _receive: Receive, send: Send) -> None:
        """An application of its own, for a port of its own: /metrics alone."""
        stream = Stream(send, request_id(None))
        if scope["path"] != METRICS:
            await stream.fail(unknown_path(scope["path"]))
        elif scope["method"] not in ("GET", "HEAD"):
            await stream.fail(wrong_method(scope["method"], METRICS, "GET, HEAD"))
        else:
            await stream.whole(200, CONTENT_TYPE, self._metrics.render())

    async def _answer(self, exchange: Exchange) -> None:
        path = exchange.path
        if b"content-length" in exchange.headers and b"transfer-encoding" in exchange.headers:
            raise two_lengths()
        if path in self._body_bytes:
            exchange.allow("POST")
            await self._forward(exchange)
        elif path in self._own_paths or path.startswith(MODEL_PREFIX):
            exchange.allow("GET", "HEAD")
            await self._own(exchange)
        else:
            raise unknown_path(path)

    async def _forward(self, exchange: Exchange) -> None:
        limit = self._body_bytes[exchange.path]
        with await read_body(exchange.receive, exchange.headers, limit, self._budget) as body:
            call = Call(
                path=exchange.path,
                query=quote(exchange.scope["query_string"], safe="=&%+:/?@!$'()*,;-._~"),
                headers=exchange.scope["headers"],
                body=body,
                request_id=exchange.stream.request_id,
                model_name=await self._model_name(body),
            )
            exchange.model = find_model(self._store.current, call.model_name)
            with (
                self._metrics.in_flight.labels(*labels_of(exchange.model)).track_inprogress(),
                self._room.enter(exchange.model, call.model_name) as place,
            ):
                async with self._running.hold(exchange.receive):
                    await self._relay.carry(call, exchange.stream, place)

    async def _model_name(self, body: Body) -> str:
        if len(body) <= SMALL_BYTES:
            return model_name(body.view)
        return await self._turns.take(lambda: model_name(body.view))

    async def _own(self, exchange: Exchange) -> None:
        stream, table = exchange.stream, self._store.current
        match exchange.path:
            case "/v1/models":
                await stream.whole(200, JSON, model_list(table))
            case "/live":
                await stream.whole(200, JSON, b'{"status": "ok"}')
            case "/health":
                status, word = self._health()
                await stream.whole(status, JSON, b'{"status": "%s"}' % word)
            case "/metrics":
                await stream.whole(200, CONTENT_TYPE, self._metrics.render())
            case path:
                await stream.whole(200, JSON, one_model(table, path.removeprefix(MODEL_PREFIX)))

    def _health(self) -> tuple[int, bytes]:
        if self._draining:
            return 503, b"draining"
        return (503, b"starting") if self._store.current is None else (200, b"ok")


class Exchange:
    """One request and its answer, while it is handled."""

    def __init__(self, scope: Message, headers: dict[bytes, bytes], receive: Receive, stream: Stream) -> None:
        self.scope: Any = scope
        self.headers = headers
        self.receive = receive
        self.stream = stream
        self.path: str = scope["path"]
        self.model: Model | None = None
        self.code: int | None = None  # what to count instead of the status that was sent

    def allow(self, *methods: str) -> None:
        """Raise Refusal 405 for any other method."""
        if self.scope["method"] not in methods:
            raise wrong_method(self.scope["method"], self.path, ", ".join(methods))
