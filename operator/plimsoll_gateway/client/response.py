"""The response of one request while it arrives: read in chunks, no faster than the client takes them."""

from __future__ import annotations

from contextlib import suppress

import aiohttp

from plimsoll_gateway.client.errors import BrokenResponseError, text_of

MOST_PIECE = 16 << 10
"""The most bytes of one read. If twice as many are unread, aiohttp stops reading from the replica."""


class Response:
    """A response. `headers` have lower-case names. The caller closes it, which cancels an unfinished request."""

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
        """Return the value of the first header of this lower-case name, or None."""
        return self._by_name.get(name)

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is uncompressed server-sent events."""
        kind = self._by_name.get(b"content-type", b"")
        if kind.partition(b";")[0].strip().lower() != b"text/event-stream":
            return False
        return b"content-encoding" not in self._by_name

    @property
    def is_whole(self) -> bool:
        """Whether the complete body has been received and read."""
        return not self._peeked and self._content.is_eof() and self._content.exception() is None

    async def read(self) -> bytes:
        """Return the next chunk of the body; empty at its end. Raises BrokenResponseError."""
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
        """Return the start of the body: at least `most` bytes if it has that many. `read` returns them again.

        If the response breaks, the bytes before that are returned; `read` raises after them.
        """
        text = b""
        with suppress(BrokenResponseError):
            while len(text) < most and (piece := await self.read()):
                text += piece
        self._peeked = text
        return text

    def close(self) -> None:
        """Stop reading and release the connection."""
        if self._closed is not None:  # the connection may serve another request
            self._closed.remove_done_callback(self._connection_closed)
        self._response.close()

    def _reset(self) -> BaseException | None:
        """Return the error that ended the connection. An end without an error completes a response without a length."""
        return self._closed.exception() if self._closed is not None and self._closed.done() else None

    def _connection_closed(self, _: object) -> None:
        """Wake the reader: aiohttp does not if the connection ends because the data is not HTTP."""
        if not self._content.is_eof() and self._content.exception() is None:
            self._content.set_exception(aiohttp.ClientPayloadError("the connection was closed"))
