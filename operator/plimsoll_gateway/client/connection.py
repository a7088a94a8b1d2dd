"""One connection to a replica: a request, its answer, and then the next request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import httptools

from plimsoll_gateway.client.errors import InvalidResponseError, ResetError, UpstreamError
from plimsoll_gateway.client.immediate_future import ImmediateFuture
from plimsoll_gateway.client.response import Response

PIECE = 64 << 10
"""Bytes of a body that are written at once."""
MOST_HEAD_BYTES = 64 << 10
MOST_FIELDS = 200
_SWITCHING = 101
Pieces = AsyncGenerator[bytes, None]


class Connection(asyncio.Protocol):
    """`rest` is called when it may take another request, `gone` when it never will.

    A replica that answers before it has been sent everything does not want the rest: nothing more is sent, and the
    connection ends with the answer.
    """

    def __init__(self, rest: Callable[[Connection], None], gone: Callable[[Connection], None]) -> None:
        self.rested = 0.0  # since when it is idle; the pool's to say
        self._rest = rest
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: ImmediateFuture[Response | UpstreamError] | None = None
        self._found: Response | UpstreamError | None = None  # what the waiter is told once all has been looked at
        self._response: Response | None = None
        self._why: InvalidResponseError | None = None  # a callback ended the parser
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0  # of a head that has not ended, in what has come before
        self._coming = 0  # bytes in what is being read
        self._heard_bytes = 0  # of fields, in heads that came with more bytes than one may have
        self._body_came = False  # in what is being read
        self._idle_bytes = 0  # of an answer behind its head, since the last of its body
        self._framed = False  # the answer's head says where its body ends
        self._reusable = False
        self._complete = False
        self._surplus = False  # something came for which nobody has asked
        self._sending = False
        self._room: asyncio.Future[None] | None = None  # until there is room to write

    @property
    def usable(self) -> bool:
        """Whether a request may be sent."""
        return not self.transport.is_closing()

    async def ask(self, head: bytes, body: memoryview | Pieces) -> Response:
        """Send a request, and wait for the head of its answer. Raises UpstreamError, and what `body` raises as it
        comes.

        With a body that comes in pieces, which are framed already, as many are asked for as the replica takes.
        """
        waiter: ImmediateFuture[Response | UpstreamError] = ImmediateFuture(self._loop)
        self._waiter = waiter
        self._headers, self._head_bytes, self._heard_bytes, self._complete = [], 0, 0, False
        try:
            if not isinstance(body, memoryview):
                await self._pass_on(head, body, waiter)
            elif len(body) <= PIECE:
                self.transport.write(b"".join((head, body)))
            else:
                await self._send(head, body, waiter)
            found: Response | UpstreamError = await waiter
        except BaseException:
            if self._waiter is waiter:
                self.abort()
            raise
        finally:
            if self._waiter is waiter:  # an answer that came whole may have let the next request in already
                self._waiter = None
        if isinstance(found, UpstreamError):
            raise found
        return found

    async def _send(self, head: bytes, body: memoryview, waiter: ImmediateFuture[Response | UpstreamError]) -> None:
        self._sending = True
        self.transport.write(head)
        for at in range(0, len(body), PIECE):
            if waiter.done():
                return
            self.transport.write(body[at : at + PIECE])
            if self._room is not None:
                await self._room
            await asyncio.sleep(0)  # a replica that takes everything at once must not stop the others' streams
        self._sending = False

    async def _pass_on(self, head: bytes, body: Pieces, waiter: ImmediateFuture[Response | UpstreamError]) -> None:
        self._sending = True
        self.transport.write(head)
        async with aclosing(body):
            async for piece in body:
                if waiter.done():
                    return
                self.transport.write(piece)
                if self._room is not None:
                    await self._room
        self._sending = False

    def pause(self) -> None:
        """Read nothing more for now: nobody takes it."""
        self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self.transport.resume_reading()

    def abort(self) -> None:
        """End it, and whatever is under way."""
        self.transport.abort()

    def close(self) -> None:
        """It is idle, and not needed."""
        self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Some of an answer."""
        self._look_at(data)
        self._hand_over()

    def _look_at(self, data: bytes) -> None:
        self._coming = len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(self._why or InvalidResponseError(str(error) or type(error).__name__))
            return
        if self._complete:
            self._finish()
        elif self._surplus:
            self.abort()
        elif self._response is None:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._fail(_head_too_large())
        elif self._body_came:
            self._body_came, self._idle_bytes = False, 0
        else:
            self._idle_bytes += len(data)
            if self._idle_bytes > MOST_HEAD_BYTES:  # the parser keeps a trailer's field until its end
                self._fail(InvalidResponseError(f"its trailer has more than {MOST_HEAD_BYTES} bytes"))

    def _because(self, why: InvalidResponseError) -> InvalidResponseError:
        """What a callback ends the parser with. Its own error tells of it only where nobody handles another one."""
        self._why = why
        return why

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever wanted it."""
        self._make_room()
        response, self._response = self._response, None
        if response is not None:
            whole = exc is None and not self._framed
            response.end(None if whole else str(exc or "the connection was closed"))
        self._tell(ResetError(str(exc or "the connection was closed")))
        self._gone(self)
        self._hand_over()

    def pause_writing(self) -> None:
        """The replica takes less than we send."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """It has taken it."""
        self._make_room()

    def on_message_begin(self) -> None:
        """The first byte of an answer."""
        self._surplus = self._waiter is None or self._found is not None or self._waiter.done()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of a head, or of a trailer, which comes too late."""
        if self._response is None and not self._surplus:
            if len(self._headers) >= MOST_FIELDS:
                raise self._because(_head_too_large())
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The end of a head."""
        status = self._parser.get_status_code()
        if self._surplus:
            return
        if self._head_bytes + self._coming > MOST_HEAD_BYTES:  # else it cannot have as much
            self._heard_bytes += sum(len(name) + len(value) for name, value in self._headers)
            if self._heard_bytes > MOST_HEAD_BYTES:
                raise self._because(_head_too_large())
        if status < 200 and status != _SWITCHING:  # not the answer yet
            self._headers = []
            return
        self._reusable = self._parser.should_keep_alive()
        self._response = response = Response(status, self._headers, self)
        self._framed = status in (204, 304) or _says_its_end(response)
        self._body_came, self._idle_bytes = False, 0
        self._tell(response)
        if self._room is not None:
            self._make_room()

    def on_body(self, body: bytes) -> None:
        """A piece of it."""
        if self._response is not None:
            self._body_came = True
            self._response.push(body)

    def on_message_complete(self) -> None:
        """The end of an answer, or of something that came before it."""
        response, self._response = self._response, None
        if response is not None:
            response.end()
            self._complete = True

    def _finish(self) -> None:
        self._complete = False
        if self._reusable and not self._surplus and not self._sending and not self.transport.is_closing():
            self.transport.resume_reading()
            self._rest(self)
        else:
            self.abort()

    def _fail(self, error: UpstreamError) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.end(str(error))
        self._tell(error)
        self.abort()

    def _tell(self, found: Response | UpstreamError) -> None:
        if self._found is None and self._waiter is not None and not self._waiter.done():
            self._found = found

    def _hand_over(self) -> None:
        """Let whoever waits go on, here and now: the connection may have its next request when this returns."""
        found, self._found = self._found, None
        if found is not None and self._waiter is not None and not self._waiter.done():
            self._waiter.hand_over(found)

    def _make_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)


def _says_its_end(response: Response) -> bool:
    if response.header(b"content-length") is not None:
        return True
    return any(name == b"transfer-encoding" and value.lower().endswith(b"chunked") for name, value in response.headers)


def _head_too_large() -> InvalidResponseError:
    return InvalidResponseError(f"its head has more than {MOST_HEAD_BYTES} bytes, or than {MOST_FIELDS} fields")
