"""One response on its way to the client, and its end after an error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from plimsoll_gateway.errors.dialects import OPENAI, Dialect
from plimsoll_gateway.errors.refusals import Refusal
from plimsoll_gateway.proxy.body import Message
from plimsoll_gateway.proxy.sse import EventAligner

Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]


class ResponseStream:
    """Sends a response through ASGI and remembers its state, so that an error can still be sent in a fitting form."""

    def __init__(self, send: Send, request_id: str, dialect: Dialect = OPENAI) -> None:
        self._send = send
        self.request_id = request_id
        self.dialect = dialect
        self._aligner: EventAligner | None = None
        self._complete = False
        self.status: int | None = None  # the status that was sent, or None
        self.extra: Headers = ()  # the gateway's own headers, added to each response
        self.error: str | None = None  # the code of the error that ended the response
        self.said_all = False  # the last event has been sent, and only the end of the body is missing

    @property
    def id_headers(self) -> Headers:
        """The request's id, for the gateway's own responses."""
        value = self.request_id.encode("ascii")
        return [(name, value) for name in self.dialect.id_names]

    async def start(self, status: int, headers: Headers, *, events: bool = False) -> None:
        """Send status and headers; `events` marks a body of server-sent events."""
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.extra]})
        self._aligner = EventAligner() if events else None
        self.status = status

    async def push(self, chunk: bytes) -> None:
        """Send a chunk of the body; returns when the client's buffers accept more."""
        ready = chunk if self._aligner is None else self._aligner.push(chunk)
        if ready:
            self.said_all = self._aligner is not None and self.dialect.ends(ready)
            await self._send({"type": "http.response.body", "body": ready, "more_body": True})

    async def finish(self, last: bytes = b"") -> None:
        """Send the last chunk of the body."""
        ready = last if self._aligner is None else self._aligner.push(last) + self._aligner.rest()
        self._complete = True
        await self._send({"type": "http.response.body", "body": ready, "more_body": False})

    async def whole(self, status: int, content_type: bytes, body: bytes, headers: Headers = ()) -> None:
        """Send a complete response of the gateway's own."""
        own = [
            (b"content-type", content_type),
            (b"content-length", b"%d" % len(body)),
            *self.id_headers,
        ]
        await self.start(status, [*own, *headers])
        await self.finish(body)

    async def nothing(self, headers: Headers) -> None:
        """Send 204: the response has headers, but no body."""
        await self.start(204, [*self.id_headers, *headers])
        await self.finish()

    async def fail(self, refusal: Refusal) -> None:
        """End the response with an error that the client cannot miss.

        If nothing has been sent: an error response. In a stream of events: a last event with the error. Otherwise the
        response stays incomplete, so that the server closes the connection and the client's read fails.
        """
        self.error = refusal.code
        if self.status is None:
            headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in refusal.headers]
            body = self.dialect.body(refusal, self.request_id)
            await self.whole(self.dialect.status(refusal), b"application/json", body, headers)
        elif self._aligner is not None and not self._aligner.inside_event and not self._complete:
            self._complete = True
            event = self.dialect.event(refusal, self.request_id)
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
