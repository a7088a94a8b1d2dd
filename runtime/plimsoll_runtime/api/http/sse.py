"""Server-sent events: a stream of JSON, ended as its dialect says, or by an error."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from plimsoll_runtime.api.http.concurrency import ClientGoneError, unless_gone
from plimsoll_runtime.api.http.errors import ApiError, Dialect, dialect_of
from plimsoll_runtime.api.telemetry.request_record import RequestRecord

logger = logging.getLogger(__name__)


class Comment(msgspec.Struct, frozen=True):
    """A comment among the events of a stream. Clients skip it; it keeps an idle connection open."""

    text: str


Events = AsyncGenerator[msgspec.Struct, None]
STALLED_SECONDS = 60.0
"""A client that reads none of its stream for this long counts as disconnected. Until then its model is kept awake."""
END = b"\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def open_stream(request: Request, events: Events, record: RequestRecord) -> EventStream:
    """Return a response that starts when the first event exists, so that an earlier error still sets the HTTP status.

    Raises what the first event raises, and ClientGoneError.
    """
    first = await unless_gone(request.receive, anext(events))
    return EventStream(first, events, record)


class EventStream(Response):
    """Sends events as they arrive, and closes their source when the client disconnects or stops reading."""

    media_type = "text/event-stream"

    def __init__(self, first: msgspec.Struct, rest: Events, record: RequestRecord) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._record = record
        self._clock = asyncio.get_running_loop().time
        self._sending_since: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        try:
            async with aclosing(self._rest):
                await unless_gone(
                    partial(self._gone, receive), self._send_all(partial(self._timed, send), dialect_of(scope))
                )
        except ClientGoneError:
            self._record.finished("disconnect")

    async def _timed(self, send: Send, message: Message) -> None:
        self._sending_since = self._clock()
        await send(message)
        self._sending_since = None

    async def _gone(self, receive: Receive) -> Message:
        """Return the client's next message, or a disconnect if nothing could be sent for `STALLED_SECONDS`."""
        hearing = asyncio.ensure_future(receive())
        try:
            while True:
                since = self._sending_since
                left = STALLED_SECONDS if since is None else since + STALLED_SECONDS - self._clock()
                if left <= 0:
                    logger.warning(
                        "A stream's client has read nothing for %g s; its request is cancelled", STALLED_SECONDS
                    )
                    return {"type": "http.disconnect"}
                if (await asyncio.wait({hearing}, timeout=left))[0]:
                    return hearing.result()
        finally:
            hearing.cancel()

    async def _send_all(self, send: Send, dialect: Dialect) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._send_event(send, self._first, dialect)
        try:
            async for event in self._rest:
                await self._send_event(send, event, dialect)
        except ApiError as error:
            logger.warning("stream ended by an error: %s", error.message)
            last = dialect.last_words(error) + END
        else:
            last = b"" if dialect.end is None else b"data: " + dialect.end + END
        await _send(send, last, more=False)

    async def _send_event(self, send: Send, event: msgspec.Struct, dialect: Dialect) -> None:
        if isinstance(event, Comment):
            alive = dialect.alive
            await _send(send, (f": {event.text}".encode() if alive is None else dialect.event(alive)) + END)
            return
        started = time.perf_counter()
        await _send(send, dialect.event(event) + END)
        self._record.send_seconds += time.perf_counter() - started


async def _send(send: Send, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})
