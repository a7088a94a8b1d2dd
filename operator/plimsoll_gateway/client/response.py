"""The answer to one request, while it arrives: read piece by piece, and no faster than somebody takes it."""

from __future__ import annotations

from contextlib import suppress

import aiohttp

from plimsoll_gateway.client.errors import BrokenResponseError, text_of

MOST_PIECE = 16 << 10
"""Most bytes of one read. With twice as many waiting to be read, aiohttp reads nothing more from the replica."""


class Response:
    """`headers` have lower-case names. Whoever has it closes it, which ends a request that still runs."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers = [(name.lower(), value) for name, value in response.raw_headers]
        self._by_name = dict(reversed(self.headers))
        self._response = response
        self._content = response.content
        self._peeked = b""
        self._framed = b"content-length" in self._by_name or b"transfer-encoding" in self._by_name
        connection = response.connection
        protocol = None if connection is None else connection.protocol
        self._closed = None if protocol is None else protocol.closed
        if self._closed is not None:
            self._closed.add_done_callback(self._connection_closed)

    def header(self, name: bytes) -> bytes | None:
        """The first of that name."""
        return self._by_name.get(name)

    @property
    def is_event_stream(self) -> bool:
        """Whether it is server-sent events that anybody can read."""
        kind = self._by_name.get(b"content-type", b"")
        if kind.partition(b";")[0].strip().lower() != b"text/event-stream":
            return False
        return b"content-encoding" not in self._by_name

    @property
    def is_whole(self) -> bool:
        """Whether all of it is here."""
        return not self._peeked and self._content.is_eof() and self._content.exception() is None

    async def read(self) -> bytes:
        """What has come since the last time, once there is any; nothing at the end. Raises BrokenResponseError."""
        if self._peeked:
            text, self._peeked = self._peeked, b""
            return text
        try:
            text = await self._content.read(MOST_PIECE)
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise BrokenResponseError(text_of(error)) from None
        if not text and not self._framed and (reset := self._reset()) is not None:
            raise BrokenResponseError(text_of(reset))
        return text

    async def peek(self, most: int) -> bytes:
        """What it begins with: `most` bytes or a little more, or all of it. `read` still gives it.

        Of an answer that breaks it is what came before; `read` raises behind it.
        """
        text = b""
        with suppress(BrokenResponseError):
            while len(text) < most and (piece := await self.read()):
                text += piece
        self._peeked = text
        return text

    def close(self) -> None:
        """Nobody reads any more of it."""
        if self._closed is not None:  # the connection's, which may serve another request
            self._closed.remove_done_callback(self._connection_closed)
        self._response.close()

    def _reset(self) -> BaseException | None:
        """The error that ended the connection. The end of one without errors is that of an answer without a length."""
        return self._closed.exception() if self._closed is not None and self._closed.done() else None

    def _connection_closed(self, _: object) -> None:
        """Wake the reader: aiohttp does not when the connection ends because what came is not HTTP."""
        if not self._content.is_eof() and self._content.exception() is None:
            self._content.set_exception(aiohttp.ClientPayloadError("the connection was closed"))
