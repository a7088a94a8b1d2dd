"""A body that is streamed to its replica, so that the gateway never holds a whole file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping

from plimsoll_gateway.errors.refusals import body_too_large
from plimsoll_gateway.proxy.body import (
    MOST_OPTION,
    Message,
    Receive,
    check_encoding,
    check_pace,
    discard_unread,
    next_piece,
)


class Upload:
    """One upload of at most `limit` bytes. `headers` have lower-case names."""

    def __init__(
        self,
        receive: Receive,
        headers: Mapping[bytes, bytes],
        limit: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._receive = receive
        self._headers = headers
        self._limit = limit
        self._clock = clock
        declared = headers.get(b"content-length", b"")
        self.declared = int(declared) if declared.isdigit() else None
        """Its length in bytes, if the client declares it."""
        self._came = 0
        self._whole = False
        self._ended = asyncio.Event()  # reading has ended, complete or not

    async def check(self) -> None:
        """Raise Refusal (413, 415) for a body that cannot be forwarded, before a replica is asked."""
        check_encoding(self._headers)
        if self.declared is not None and self.declared > self._limit:
            await self.discard()
            raise body_too_large(self._limit, MOST_OPTION)

    async def discard(self) -> None:
        """Read and discard the rest, within limits, so that the client gets the response."""
        if not self._whole:
            self._whole = True
            await discard_unread(self._receive, self._headers)

    async def behind(self) -> Message:
        """Return the client's next message after the complete upload; a disconnect if it ended early."""
        await self._ended.wait()
        return await self._receive() if self._whole else {"type": "http.disconnect"}

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of the body. Raises Refusal (408, 413) or ClientGone."""
        began = self._clock()
        try:
            while not self._whole:
                piece, more = await next_piece(self._receive)
                self._whole = not more
                self._came += len(piece)
                if self._came > self._limit:
                    await self.discard()
                    raise body_too_large(self._limit, MOST_OPTION)
                if piece:
                    yield piece
                if more:
                    check_pace(self._came, self._clock() - began)
        finally:
            self._ended.set()
