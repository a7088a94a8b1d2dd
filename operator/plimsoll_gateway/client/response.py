"""The answer to one request, while it arrives: read piece by piece, and no faster than somebody takes it."""

from __future__ import annotations

from contextlib import suppress

import aiohttp

from plimsoll_gateway.client.errors import BrokenResponseError

MOST_PIECE = 64 << 10
"""Bytes that are read at once, and wait for a client that takes nothing."""


class Response:
    """`headers` have lower-case names. Whoever has it closes it, which ends a request that still runs."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers = [(name.lower(), value) for name, value in response.raw_headers]
        self._by_name = dict(reversed(self.headers))
        self._response = response
        self._peeked = b""

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
        return self._response.content.is_eof() and self._response.content.exception() is None

    async def read(self) -> bytes:
        """What has come since the last time, once there is any; nothing at the end. Raises BrokenResponseError."""
        if self._peeked:
            text, self._peeked = self._peeked, b""
            return text
        try:
            return await self._response.content.read(MOST_PIECE)
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenResponseError(str(error) or type(error).__name__) from None

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
        self._response.close()
