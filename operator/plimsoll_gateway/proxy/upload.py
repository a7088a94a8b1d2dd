"""A body that goes to its replica as it comes, so that a file of any size is never held here."""

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
    """One of them, of at most `limit` bytes. `headers` have lower-case names."""

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
        """Its length in bytes, where its client says it."""
        self._came = 0
        self._whole = False
        self._ended = asyncio.Event()  # nothing more of it is read, whole or not

    async def check(self) -> None:
        """Raises Refusal (413, 415) for what certainly cannot be passed on, before anybody is asked."""
        check_encoding(self._headers)
        if self.declared is not None and self.declared > self._limit:
            await self.discard()
            raise body_too_large(self._limit, MOST_OPTION)

    async def discard(self) -> None:
        """Let its client send what is left, within bounds, so that it sees the answer."""
        if not self._whole:
            self._whole = True
            await discard_unread(self._receive, self._headers)

    async def behind(self) -> Message:
        """The client's next message once the file has come whole; a disconnect if it ended early."""
        await self._ended.wait()
        return await self._receive() if self._whole else {"type": "http.disconnect"}

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """It, piece by piece. Raises Refusal (408, 413) or ClientGone."""
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
