"""uvicorn's HTTP protocol with an end to its patience, and errors in OpenAI's shape.

The head of a request must come within a time, and within a size. uvicorn waits for ever for a head that has begun, and
for one that never does on a fresh connection, and its parser takes heads of any length. Each costs a client a few
bytes, and the server a connection. An idle one between two requests is ended by uvicorn's own keep-alive timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import ClassVar

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from plimsoll_gateway.errors.refusals import (
    Refusal,
    bad_head,
    head_too_large,
    head_too_slow,
    too_many_connections,
    two_lengths,
    wrong_host,
)
from plimsoll_gateway.proxy.exchange import EXTENSION, ClientConnection
from plimsoll_gateway.server.connection_limit import ConnectionLimit
from plimsoll_gateway.server.http1.exchange import Cycle
from plimsoll_gateway.server.http1.idle_timer import IdleTimer
from plimsoll_gateway.server.http1.request_target import parts_of
from plimsoll_gateway.server.http1.task_pool import Workers
from plimsoll_gateway.server.http1.write_buffer import CorkedTransport

HEAD_SECONDS = 20.0
MOST_HEAD_BYTES = 64 << 10
MOST_FIELDS = 200
"""Fields of a head. Each takes some 130 bytes of memory beside its own, and may have four."""
MOST_AHEAD = 16
"""Requests that a client may send ahead of an answer. uvicorn makes some 3 KiB of each at once, and a single read may
have thousands: those that are taken are answered, and then the connection ends."""
MOST_AHEAD_BYTES = 64 << 10
"""Of the bodies of those. No budget knows of them before their turn."""
_LENGTHS = frozenset([b"content-length", b"transfer-encoding"])
_TWO_LENGTHS = "can't be present with"  # the parser, of Content-Length and Transfer-Encoding


PROBES = frozenset([b"/health", b"/live"])


class TooManyAheadError(Exception):
    """The parser ends with this what it has been given."""


class TooManyConnectionsError(Exception):
    """The same, of a connection that is beyond the bound."""


class HeadTooLargeError(Exception):
    """The same, in a head that has more than it may."""


class WrongHostError(Exception):
    """The same, of a head with no Host field or several; the argument is how many."""


class OrderlyFlow(FlowControl):
    """Reads nothing more while `full` says so, whoever asks for it."""

    def __init__(self, transport: asyncio.Transport, full: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._full = full

    def resume_reading(self) -> None:
        """Read on, if it may."""
        if self.read_paused and not self._full():
            super().resume_reading()


class PatientProtocol(HttpToolsProtocol):
    """One connection. Patience begins with it, and with the first byte of each later request; bytes do not renew it."""

    bound: ClassVar[ConnectionLimit | None] = None
    """All connections of the server; None where nobody counts them."""
    workers: ClassVar[Workers | None] = None
    """Who answers requests; None for a task each."""

    _extra = False
    _timer: asyncio.TimerHandle | None = None
    _in_head = False
    _declining = False
    _head_bytes = 0  # of a head that has not ended, in what has come before
    _ahead_bytes = 0  # of bodies, since there are requests that wait for another's answer
    _coming = 0  # bytes in what is being read
    _in_message = False  # from the end of a head to that of its body and trailer
    _body_came = False  # in what is being read
    _idle_bytes = 0  # of a message that is no head, since the last of its body
    _client: ClientConnection  # of the request that is being read
    _clients: tuple[ClientConnection, ...] = ()  # of the requests that are not answered yet, the last one last
    _why: Exception | None = None  # a callback ended the parser
    _due: Cycle | None = None  # to be begun once all has been looked at that is being read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new client."""
        self._corked = CorkedTransport(transport, self.loop)
        super().connection_made(self._corked)
        self.flow = OrderlyFlow(self._corked, lambda: self._ahead_bytes > MOST_AHEAD_BYTES)
        self._idle = IdleTimer(self.loop, self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self._wait()
        if self.bound is not None:
            self._extra = not self.bound.opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes, of a head or of what follows one. Empty lines before a head are neither, and renew no patience."""
        self._coming = len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._stop()
            self._refuse(self._reason_of(error))
        if not self._in_head:
            self._head_bytes = 0
        elif not self.transport.is_closing():
            self._wait()
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse(head_too_large(MOST_HEAD_BYTES, MOST_FIELDS))

        if self._in_message:
            self._idle_bytes = 0 if self._body_came else self._idle_bytes + len(data)
            self._body_came = False
            if self._idle_bytes > MOST_HEAD_BYTES:  # the parser keeps a trailer's field until its end
                self._corked.abort()
        if self._due is not None:
            cycle, self._due = self._due, None
            self._start(cycle)

    def eof_received(self) -> None:
        """The client sends nothing more, and the connection ends: what has been said in this round still goes out."""
        self._corked.flush()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever wanted it."""
        self._stop()
        self._idle.stop()
        self._corked.stall.end()
        if self.bound is not None:
            self.bound.closed(self)
        super().connection_lost(exc)
        for client in self._clients:
            client.hang_up()

    def pause_writing(self) -> None:
        """The client takes less than is written."""
        super().pause_writing()
        self._corked.stall.begin()

    def resume_writing(self) -> None:
        """It has taken it."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._corked.stall.end()

    def timeout_keep_alive_handler(self) -> None:
        """It has been idle for long enough, even where its client has not read all of the last answer."""
        self._corked.abort()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if self._declining:
            return
        if len(self.pipeline) >= MOST_AHEAD:
            raise TooManyAheadError
        self._idle.end()
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of a head, or of the trailer that may follow a body in chunks: what comes so late is not heard."""
        if self._in_head:
            fields = self.headers
            if len(fields) >= MOST_FIELDS:
                raise self._because(HeadTooLargeError())
            fields.append((name.lower(), value))

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        if not self._declining:
            self.url += url
            if len(self.url) > MOST_HEAD_BYTES:
                raise self._because(HeadTooLargeError())

    def on_headers_complete(self) -> None:
        """The end of a head."""
        if self._declining:
            return
        if self._head_bytes + self._coming > MOST_HEAD_BYTES:  # else it cannot have as much
            self._measure()
        fields = dict(self.headers)
        if b"host" not in fields or len(fields) < len(self.headers):  # only the second may have two hosts
            self._check_host()
        if b"expect" in fields:
            self.expect_100_continue = any(n == b"expect" and v.lower() == b"100-continue" for n, v in self.headers)
        self._in_head = False
        self._in_message, self._idle_bytes = True, 0
        self._stop()
        if self._extra and self.url.partition(b"?")[0] not in PROBES:
            raise self._because(TooManyConnectionsError())
        if self.bound is not None:
            self.bound.busy(self)
        self._client = client = ClientConnection(self.flow.resume_reading)
        self.scope["extensions"] = {EXTENSION: {"caller": client, "fields": fields}}
        self._clients = (*self._clients, client)
        self._begin_exchange()
        if self._extra:
            self.cycle.keep_alive = False

    def _measure(self) -> None:
        """Of a head that came with more than it may have: some of that may have been before it, or be its body."""
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MOST_HEAD_BYTES:
            raise self._because(HeadTooLargeError())

    def _check_host(self) -> None:
        """Raise unless the head has one Host field, or none in HTTP/1.0 (RFC 9112 section 3.2)."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() != "1.0"):
            raise self._because(WrongHostError(hosts))

    def _begin_exchange(self) -> None:
        """What uvicorn does at the end of a head, where there are no websockets, with a cycle of ours."""
        parser, scope, before = self.parser, self.scope, self.cycle
        version = parser.get_http_version()
        scope["method"], scope["http_version"] = parser.get_method().decode("ascii"), version
        scope["path"], scope["raw_path"], scope["query_string"] = parts_of(self.url)
        self.cycle = cycle = Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
            tasks=self.tasks,
            hold=self._corked.hold,
        )
        if before is None or before.response_complete:
            self._due = cycle
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def _start(self, cycle: RequestResponseCycle) -> None:
        if self.workers is None:
            self.tasks.add(self.loop.create_task(cycle.run_asgi(self.app)))
        else:
            self.workers.start(cycle.run_asgi(self.app), self.tasks, self.loop)

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._body_came = True
        super().on_body(body)
        if self.pipeline:
            self._ahead_bytes += len(body)
            if self._ahead_bytes > MOST_AHEAD_BYTES:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """The end of a request; of one that offers to upgrade the parser says so before its body."""
        if not self.parser.should_upgrade():
            self._client.all_here = True
            self._in_message = False
            super().on_message_complete()

    def _feed(self, data: bytes) -> None:
        """Parse. Raises httptools.HttpParserError."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                self._decline()
            else:
                return

    def _decline(self) -> None:
        """Go on with HTTP/1.1: the parser has read the head of an offer to upgrade and will read nothing more.

        Another one takes over, which is told only how the body ends.
        """
        framing = [b"%s: %s\r\n" % field for field in self.headers if field[0] in _LENGTHS]
        self.parser = httptools.HttpRequestParser(self)
        self._declining = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing or [b"content-length: 0\r\n"]) + b"\r\n")
        self._declining = False

    def on_response_complete(self) -> None:
        """The end of an answer; patience begins for a head that began before it."""
        self._corked.flush()  # what is still to be done about the request is no time of its client's
        self._clients = self._clients[1:]
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start(self.pipeline.pop()[0])
            else:
                self._idle.begin()
        if self._ahead_bytes and not self.pipeline:
            self._ahead_bytes = 0
            self.flow.resume_reading()
        if not self._answering:
            self._forget()
            if self.bound is not None:
                self.bound.idle(self)
        if self._in_head and not self.transport.is_closing():
            self._wait()

    def give_way(self) -> None:
        """End it now: another one needs its place, and counts instead of it."""
        self._stop()
        self._corked.abort()

    def _forget(self) -> None:
        """Hold nothing of a request that has its answer."""
        if not self._in_head:
            self.url, self.headers, self.scope = b"", [], {}  # type: ignore[typeddict-item]
        self.cycle.scope, self.cycle.body = {}, bytearray()  # type: ignore[typeddict-item]

    def _because(self, why: Exception) -> Exception:
        """What a callback ends the parser with. Its own error tells of it only where nobody handles another one."""
        self._why = why
        return why

    def _reason_of(self, error: httptools.HttpParserError) -> Refusal:
        """What is wrong with what was given to the parser."""
        if isinstance(self._why, TooManyConnectionsError):
            assert self.bound is not None
            self.bound.refused()
            return too_many_connections(self.bound.most)
        if isinstance(self._why, HeadTooLargeError):
            return head_too_large(MOST_HEAD_BYTES, MOST_FIELDS)
        if isinstance(self._why, WrongHostError):
            return wrong_host(*self._why.args)
        return two_lengths() if _TWO_LENGTHS in str(error) else bad_head()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        if self._timer is None and not self._answering:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._in_head:  # who has sent nothing would take the answer for that to its first request
            self._refuse(head_too_slow(HEAD_SECONDS))
        else:
            self.transport.close()

    def _refuse(self, refusal: Refusal) -> None:
        """Say so and close. While an earlier answer is under way nothing is said, and the connection ends with it."""
        if self._answering:
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            return
        body = refusal.body
        head = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
        fields = {"content-type": "application/json", "content-length": str(len(body)), **dict(refusal.headers)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.transport.write(f"{head}{lines}\r\n".encode("ascii") + body)
        self.transport.close()
