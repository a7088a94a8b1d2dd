"""uvicorn's HTTP protocol behind the bounds that it has none for: a guard passes on what a client sends.

Each bound has an attack that succeeds without it (benchmarks/abuse/connections.py). uvicorn waits for ever for a head
that has begun, and for one that never does on a fresh connection; its parser takes heads of any length, and all
requests that come in one read; and it waits for ever for a client that reads nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from plimsoll_gateway.errors.refusals import Refusal, head_too_large, head_too_slow, too_many_connections
from plimsoll_gateway.proxy.body import Message, Receive
from plimsoll_gateway.proxy.headers import request_id
from plimsoll_gateway.proxy.response_stream import ResponseStream, Send
from plimsoll_gateway.server.connection_limit import ConnectionLimit
from plimsoll_gateway.server.stall_watch import StallWatch

HEAD_SECONDS = 20.0
MOST_IDLE_BYTES = 64 << 10
"""Most bytes of a head, and of a trailer: the parser keeps each field until it ends."""
SLICE = 4 << 10
"""Bytes of a body that are parsed at once. uvicorn makes some 3 KiB of each request that is sent ahead, and has no
bound: a slice may have 150 of them behind a body, and a single read ten thousand."""
MOST_UNREAD_BYTES = 64 << 10
"""With more bytes behind a request that waits for its answer, nothing is read from the client."""
LINGER_SECONDS = 5.0
"""How long a client that still sends may take to read its complete answer. Closing at once would reset the connection,
and the client could lose the answer."""
PROBES = frozenset(["/health", "/live"])
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_OFFER = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_NO_OFFER = b"\r\nno-offer:"


class ConnectionGuard(asyncio.Protocol):
    """One connection. A head has HEAD_SECONDS from the start of the connection, or from the first byte of a later
    request; more bytes do not extend the time.
    """

    limit: ClassVar[ConnectionLimit | None] = None
    """Counts the connections of the server; None for a server without a bound."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._http = HttpToolsProtocol(config, server_state, app_state, _loop)
        self._app, self._http.app = self._http.app, self._run
        self._loop = self._http.loop
        self._unread = bytearray()  # has come, and waits until there is room for it
        self._idle_bytes = 0  # of what is no body, since the end of a head or the last of a body
        self._timer: asyncio.TimerHandle | None = None
        self._answered: RequestResponseCycle | None = None
        self._extra = False
        self._upgraded = False  # the parser reads nothing more

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A new client."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._stall = StallWatch(self._transport, self._loop)
        self._wire = GuardedTransport(self._transport, self._read_on, self._close)
        self._http.connection_made(self._wire)
        self._wait()
        if self.limit is not None:
            self._extra = not self.limit.opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        if not self._wire.is_closing():
            self._unread += data
            self._feed()

    def eof_received(self) -> None:
        """The client sends nothing more, and the connection ends."""
        self._http.eof_received()
        self._stall.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever wanted it."""
        self._stop()
        if self.limit is not None:
            self.limit.closed(self)
        self._http.connection_lost(exc)
        if self._answered is not None:  # uvicorn tells the last one that has come, which may wait behind this one
            self._answered.disconnected = True
            self._answered.message_event.set()
        self._stall.end()

    def pause_writing(self) -> None:
        """The client takes less than is written."""
        self._http.pause_writing()
        self._stall.begin()

    def resume_writing(self) -> None:
        """It has taken it."""
        self._http.resume_writing()
        if not self._transport.is_closing():
            self._stall.end()

    def give_way(self) -> None:
        """End it now: another one needs its place, and counts instead of it."""
        self._stop()
        self._transport.abort()

    def _feed(self) -> None:
        """Pass on what has come, while uvicorn wants it: heads one by one and whole, bodies in slices."""
        http, wire = self._http, self._wire
        if wire.is_closing():
            return
        while self._unread and not (wire.paused or wire.is_closing() or self._upgraded):
            if self._between:
                if self._answering or (piece := self._next_head()) is None:
                    break
            elif http.pipeline:
                break
            else:
                piece = bytes(self._unread[:SLICE])
                del self._unread[:SLICE]
            self._pass_on(piece)
        if (wire.paused and not http.pipeline) or len(self._unread) > MOST_UNREAD_BYTES:
            self._transport.pause_reading()
        else:  # if only to see that the client goes
            self._transport.resume_reading()

    def _pass_on(self, piece: bytes) -> None:
        before = self._progress()
        self._http.data_received(piece)
        self._idle_bytes = 0 if self._progress() != before else self._idle_bytes + len(piece)
        if self._answering:
            self._stop()
            self._upgraded = self._http.parser.should_upgrade()
            if self.limit is not None:
                self.limit.busy(self)
        elif self._in_head:
            self._wait()
        if self._idle_bytes > MOST_IDLE_BYTES:
            self._refuse(head_too_large(MOST_IDLE_BYTES))

    def _next_head(self) -> bytes | None:
        """The head that has come, without an offer to upgrade; None until it is whole, or where it is too large.

        Some clients of HTTP/2 offer to upgrade with each first request, and uvicorn would not read their bodies.
        """
        while self._unread and self._unread[0] in b"\r\n":  # a line that is empty begins no head
            del self._unread[:1]
        end = _END_OF_HEAD.search(self._unread)
        size = len(self._unread) if end is None else end.end()
        if size > MOST_IDLE_BYTES:
            self._refuse(head_too_large(MOST_IDLE_BYTES))
            return None
        if end is None:
            if size:
                self._wait()
                if self._http.timeout_keep_alive_task is not None:  # it is not idle
                    self._http.timeout_keep_alive_task.cancel()
            return None
        head = bytes(self._unread[:size])
        del self._unread[:size]
        return _OFFER.sub(_NO_OFFER, head)

    def _progress(self) -> tuple[object, int]:
        """Changes with the end of a head, and with each byte of a body."""
        cycle = self._http.cycle
        return (None, 0) if cycle is None else (cycle, len(cycle.body))

    @property
    def _in_head(self) -> bool:
        """Whether the parser has some of a head: one that came with the end of the body before it."""
        http = self._http
        return http.scope is not None and (http.cycle is None or http.scope is not http.cycle.scope)

    @property
    def _between(self) -> bool:
        """Whether the next byte begins a head."""
        cycle = self._http.cycle
        return not self._in_head and (cycle is None or not cycle.more_body)

    def _read_on(self) -> None:
        """uvicorn wants more, or has answered what it had."""
        self._loop.call_soon(self._feed)

    async def _run(self, scope: Message, receive: Receive, send: Send) -> None:
        """The application, of which uvicorn gives each connection the guard's."""
        cycle = receive.__self__  # type: ignore[attr-defined]  # uvicorn's receive is its cycle's
        self._answered = cycle

        async def send_early(message: Message) -> None:
            """Close the connection after an answer that begins before its request has ended."""
            if cycle.more_body and message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        say = send_early if cycle.more_body else send
        try:
            if self._extra:
                await self._answer_extra(scope, receive, say)
            else:
                await self._app(scope, receive, say)
        finally:
            if self._answered is cycle:
                self._answered = None
            if not self._answering:
                self._rest()
            self._read_on()  # the next request may wait for its body

    def _rest(self) -> None:
        """All is answered that has come whole."""
        if self._upgraded:
            self._wire.close()
        if self._in_head:
            self._wait()
        else:  # keep nothing of it: its head may have had as much as one may have
            http = self._http
            http.url, http.headers = b"", []
            http.scope = http.cycle.scope = {}  # type: ignore[typeddict-item]
            http.cycle.body = bytearray()
        if self.limit is not None:
            self.limit.idle(self)

    async def _answer_extra(self, scope: Message, receive: Receive, send: Send) -> None:
        """One beyond the bound is heard once."""
        assert self.limit is not None
        if scope["path"] in PROBES:
            await self._app(scope, receive, send)
        else:
            self.limit.refused()
            await ResponseStream(send, request_id(None)).fail(too_many_connections(self.limit.most))
        self._wire.close()

    @property
    def _answering(self) -> bool:
        cycle = self._http.cycle
        return cycle is not None and not cycle.response_complete

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self._unread or self._in_head:  # who has sent nothing would take the answer for that to its first request
            self._refuse(head_too_slow(HEAD_SECONDS))
        else:
            self._wire.close()

    def _refuse(self, refusal: Refusal) -> None:
        """Say so and close. While an answer is under way, it ends with the connection."""
        if self._transport.is_closing():
            return
        if self._answering:
            self._transport.abort()
            return
        body = refusal.body
        head = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
        fields = {"content-type": "application/json", "content-length": str(len(body)), **dict(refusal.headers)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._transport.write(f"{head}{lines}\r\n".encode("ascii") + body)
        self._wire.close()

    def _close(self) -> None:
        """End the connection once all is sent; a client that still sends has some time to hear its answer."""
        cycle = self._http.cycle
        self._stop()
        if cycle is None or not cycle.more_body or self._transport.is_closing():
            self._transport.close()
        else:
            self._unread.clear()
            self._transport.resume_reading()  # into nothing
            self._transport.write_eof()
            self._timer = self._loop.call_later(LINGER_SECONDS, self._transport.close)
        self._stall.begin()


class GuardedTransport(asyncio.Transport):
    """What uvicorn has of a connection: it reads on when the guard has passed on what it has."""

    def __init__(self, inner: asyncio.Transport, read_on: Callable[[], None], close: Callable[[], None]) -> None:
        super().__init__()
        self.paused = False
        self._inner = inner
        self._read_on = read_on
        self._close = close
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send."""
        self._inner.write(data)

    def close(self) -> None:
        """Close once all is sent, or its client takes nothing of it for too long."""
        if not self._closed:
            self._closed = True
            self._close()

    def abort(self) -> None:
        """Close now."""
        self._inner.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._closed or self._inner.is_closing()

    def pause_reading(self) -> None:
        """Take nothing more from the client."""
        self.paused = True

    def resume_reading(self) -> None:
        """Take more again, first of what has come already."""
        self.paused = False
        self._read_on()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the other one knows."""
        return self._inner.get_extra_info(name, default)


def guarded(limit: ConnectionLimit) -> type[ConnectionGuard]:
    """The protocol of a server whose connections are counted."""
    return type("CountedGuard", (ConnectionGuard,), {"limit": limit})
