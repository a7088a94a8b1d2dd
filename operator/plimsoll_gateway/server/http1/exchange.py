"""uvicorn's exchange of one request and its answer, whose answer is written in less time.

uvicorn looks at each byte of each header. Ours come from a parser or are our own, so that one look at the whole head
is enough: no field can have an end of a line in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from uvicorn._types import ASGI3Application, ASGIReceiveEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from plimsoll_gateway.proxy.response_stream import WHOLE

BODILESS = frozenset([204, 304])


class BadAnswerError(RuntimeError):
    """An answer that cannot be sent as it is."""


class Cycle(RequestResponseCycle):
    """One of them. `tasks`: those that the server waits for before it stops. `hold` keeps a head until more is sent."""

    def __init__(self, *, tasks: set[asyncio.Task[None]], hold: Callable[[bytes], None], **given: Any) -> None:
        super().__init__(**given)
        self._hold = hold
        self._tasks = tasks

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Let the application answer, in a task of its own, which leaves the set: that takes less than a callback."""
        try:
            await super().run_asgi(app)
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.discard(task)

    async def receive(self) -> ASGIReceiveEvent:
        """An ASGI message: nearly always the whole body, which has come before anybody asks for it."""
        ready = self.message_event.is_set() and not (self.more_body or self.waiting_for_100_continue)
        if not ready or self.disconnected or self.response_complete:
            return await super().receive()
        self.message_event.clear()
        self.flow.resume_reading()
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: MutableMapping[str, Any]) -> None:  # type: ignore[override]
        """An ASGI message: the head of the answer, and then pieces of its body."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._begin(message["status"], message.get("headers", ()), whole=message.get(WHOLE, False))
        elif not self.response_complete:
            self._pass_on(message.get("body", b""), message.get("more_body", False))
        else:
            raise BadAnswerError("an answer goes on after its end")

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]], *, whole: bool) -> None:
        fields = [*self.default_headers, *headers]
        named = dict(fields)
        closes = named.get(b"connection") == b"close"
        self.keep_alive = self.keep_alive and not closes
        length = named.get(b"content-length")
        if length is not None:
            self.expected_content_length, self.chunked_encoding = int(length), False
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in BODILESS:
            self.chunked_encoding = True
            fields.append((b"transfer-encoding", b"chunked"))
        if not (self.keep_alive or closes):
            fields.append((b"connection", b"close"))
        head = STATUS_LINE[status] + b"\r\n".join([*map(b": ".join, fields), b""])
        ends = len(fields) + 1
        if head.count(b"\n") != ends or head.count(b"\r") != ends or b"\0" in head:
            raise BadAnswerError("a header of an answer has an end of a line in it")
        self.response_started = True
        self.waiting_for_100_continue = False
        (self._hold if whole else self.transport.write)(head + b"\r\n")

    def _pass_on(self, body: bytes, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
        elif self.chunked_encoding:
            piece = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
            self.transport.write(piece if more else piece + b"0\r\n\r\n")
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise BadAnswerError("an answer is longer than its Content-Length")
            self.transport.write(body)
        if not more:
            self._end()

    def _end(self) -> None:
        if self.expected_content_length:
            raise BadAnswerError("an answer is shorter than its Content-Length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
