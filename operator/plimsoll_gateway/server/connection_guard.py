"""Adds the limits that uvicorn's HTTP protocol lacks: a guard sits between the transport and the protocol.

An attack succeeds without each of these limits (benchmarks/abuse/connections.py). uvicorn waits forever for headers
that have begun, and for a fresh connection that sends nothing; its parser accepts headers of any length, and all
requests of one read; and it waits forever for a client that does not read.
"""

from __future__ import annotations

import asyncio
import logging
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

log = logging.getLogger(__name__)

HEAD_SECONDS = 20.0
MOST_IDLE_BYTES = 64 << 10
"""The most bytes of a request head, and of a trailer: the parser keeps each field until it ends."""
SLICE = 4 << 10
"""Bytes of a body that are parsed at once. uvicorn allocates about 3 KiB for each pipelined request, without a
limit: a slice may contain 150 of them after a body, and a single read ten thousand.
"""
MOST_UNREAD_BYTES = 64 << 10
"""With more bytes behind a request in progress, nothing is read from the client."""
LINGER_SECONDS = 5.0
"""Time for a client that still sends to read its complete response. Closing immediately would reset the connection,
and the client could lose the response.
"""
PROBES = frozenset(["/health", "/live"])
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_OFFER = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_NO_OFFER = b"\r\nno-offer:"


class ConnectionGuard(asyncio.Protocol):
    """One connection. A request head must arrive within HEAD_SECONDS of the start of the connection, or of the first
    byte of a later request; more bytes do not extend the time.
    """

    limit: ClassVar[ConnectionLimit | None] = None
    """Counts the connections of the server; None for a server without a limit."""

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
        self._unread = bytearray()  # received bytes that have not been parsed
        self._idle_bytes = 0  # bytes other than body bytes since the end of a head or the last byte of a body
        self._timer: asyncio.TimerHandle | None = None
        self._answered: RequestResponseCycle | None = None
        self._extra = False
        self._upgraded = False  # the parser reads nothing more

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a connection."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._stall = StallWatch(self._transport, self._loop)
        self._wire = GuardedTransport(self._transport, self._read_on, self._close)
        self._http.connection_made(self._wire)
        self._wait()
        if self.limit is not None:
            self._extra = not self.limit.opened(self)

    def data_received(self, data: bytes) -> None:
        """Receive bytes of requests."""
        if not self._wire.is_closing():
            self._unread += data
            self._feed()

    def eof_received(self) -> None:
        """The client has half-closed the connection, which then ends."""
        self._http.eof_received()
        self._stall.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended, from either side."""
        self._stop()
        if self.limit is not None:
            self.limit.closed(self)
        self._http.connection_lost(exc)
        if self._answered is not None:  # uvicorn notifies the last request received, which may wait behind this one
            self._answered.disconnected = True
            self._answered.message_event.set()
        self._stall.end()

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""
        self._http.pause_writing()
        self._stall.begin()

    def resume_writing(self) -> None:
        """The client has read the pending bytes."""
        self._http.resume_writing()
        if not self._transport.is_closing():
            self._stall.end()

    def give_way(self) -> None:
        """Close immediately in favour of another connection. The limit has already stopped counting this one."""
        self._stop()
        self._transport.abort()

    def _feed(self) -> None:
        """Pass received bytes to uvicorn while it reads: one complete head at a time, bodies in slices."""
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
        else:  # at least to detect a disconnect
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
        """Return the next complete head without an offer to upgrade; None if it is incomplete or too large.

        Some HTTP/2 clients offer to upgrade with each first request, and uvicorn would not read their bodies.
        """
        while self._unread and self._unread[0] in b"\r\n":  # an empty line does not start a head
            del self._unread[:1]
        end = _END_OF_HEAD.search(self._unread)
        size = len(self._unread) if end is None else end.end()
        if size > MOST_IDLE_BYTES:
            self._refuse(head_too_large(MOST_IDLE_BYTES))
            return None
        if end is None:
            if size:
                self._wait()
                if self._http.timeout_keep_alive_task is not None:  # the connection is not idle
                    self._http.timeout_keep_alive_task.cancel()
            return None
        head = bytes(self._unread[:size])
        del self._unread[:size]
        return _OFFER.sub(_NO_OFFER, head)

    def _progress(self) -> tuple[object, int]:
        """Return a value that changes with the end of a head, and with each byte of a body."""
        cycle = self._http.cycle
        return (None, 0) if cycle is None else (cycle, len(cycle.body))

    @property
    def _in_head(self) -> bool:
        """Whether the parser has part of a head, which arrived together with the end of the previous body."""
        http = self._http
        return http.scope is not None and (http.cycle is None or http.scope is not http.cycle.scope)

    @property
    def _between(self) -> bool:
        """Whether the next byte starts a head."""
        cycle = self._http.cycle
        return not self._in_head and (cycle is None or not cycle.more_body)

    def _read_on(self) -> None:
        """Parse unread bytes soon: uvicorn requests more data, or has answered all requests that it had."""
        self._loop.call_soon(self._feed)

    async def _run(self, scope: Message, receive: Receive, send: Send) -> None:
        """Run the application; uvicorn calls this method for each request of the connection."""
        cycle = receive.__self__  # type: ignore[attr-defined]  # uvicorn's receive is its cycle's
        self._answered = cycle

        async def send_early(message: Message) -> None:
            """Send a message; a response that begins before its request has ended gets `Connection: close`."""
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
        """Clean up after the response to the last complete request."""
        if self._upgraded:
            self._wire.close()
        if self._in_head:
            self._wait()
        else:  # free its head, which may be as large as the limit
            http = self._http
            http.url, http.headers = b"", []
            http.scope = http.cycle.scope = {}  # type: ignore[typeddict-item]
            http.cycle.body = bytearray()
        if self.limit is not None:
            self.limit.idle(self)

    async def _answer_extra(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request of a connection beyond the limit, then close it."""
        assert self.limit is not None
        if scope["path"] in PROBES:
            await self._app(scope, receive, send)
        else:
            self.limit.refused()
            refusal = too_many_connections(self.limit.most)
            _log_refusal(refusal)
            await ResponseStream(send, request_id(None)).fail(refusal)
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
        if self._unread or self._in_head:  # a silent client would take it for the response to its first request
            self._refuse(head_too_slow(HEAD_SECONDS))
        else:
            self._wire.close()

    def _refuse(self, refusal: Refusal) -> None:
        """Send an error and close. A response in progress is aborted with the connection."""
        if self._transport.is_closing():
            return
        if self._answering:
            self._transport.abort()
            return
        _log_refusal(refusal)
        body = refusal.body
        head = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
        fields = {"content-type": "application/json", "content-length": str(len(body)), **dict(refusal.headers)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._transport.write(f"{head}{lines}\r\n".encode("ascii") + body)
        self._wire.close()

    def _close(self) -> None:
        """Close the connection after the pending bytes are sent; a client that still sends gets some time to read
        its response.
        """
        cycle = self._http.cycle
        self._stop()
        if cycle is None or not cycle.more_body or self._transport.is_closing():
            self._transport.close()
        else:
            self._unread.clear()
            self._transport.resume_reading()  # and discard the data
            self._transport.write_eof()
            self._timer = self._loop.call_later(LINGER_SECONDS, self._transport.close)
        self._stall.begin()


def _log_refusal(refusal: Refusal) -> None:
    """Log a refusal that neither the application nor its access log sees."""
    log.info("refused a connection: %d %s: %s", refusal.status, refusal.code, refusal.message)


class GuardedTransport(asyncio.Transport):
    """The transport that uvicorn gets. To pause and resume reading acts on the guard, which holds received bytes."""

    def __init__(self, inner: asyncio.Transport, read_on: Callable[[], None], close: Callable[[], None]) -> None:
        super().__init__()
        self.paused = False
        self._inner = inner
        self._read_on = read_on
        self._close = close
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        self._inner.write(data)

    def close(self) -> None:
        """Close after the pending bytes are sent, or after the client has stopped reading for too long."""
        if not self._closed:
            self._closed = True
            self._close()

    def abort(self) -> None:
        """Close immediately."""
        self._inner.abort()

    def is_closing(self) -> bool:
        """Return whether the transport is closed or closing."""
        return self._closed or self._inner.is_closing()

    def pause_reading(self) -> None:
        """Stop passing received bytes to uvicorn."""
        self.paused = True

    def resume_reading(self) -> None:
        """Pass received bytes to uvicorn again, first those that the guard holds."""
        self.paused = False
        self._read_on()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the inner transport's information."""
        return self._inner.get_extra_info(name, default)


def guarded(limit: ConnectionLimit) -> type[ConnectionGuard]:
    """Return a ConnectionGuard class whose connections count in `limit`."""
    return type("CountedGuard", (ConnectionGuard,), {"limit": limit})
