"""The answer to one request, while it arrives: read piece by piece, and no faster than somebody takes it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from plimsoll_gateway.client.errors import BrokenResponseError

MOST_BUFFERED = 128 << 10
"""Bytes that wait for a reader before no more is read from the replica."""


class Flow(Protocol):
    """What an answer may ask of its connection."""

    def pause(self) -> None:
        """Read nothing more for now."""

    def resume(self) -> None:
        """Read on."""

    def abort(self) -> None:
        """End the connection, and with it the request."""


class Response:
    """`headers` have lower-case names. Whoever has it closes it, which ends a request that still runs."""

    def __init__(self, status: int, headers: Sequence[tuple[bytes, bytes]], flow: Flow) -> None:
        self.status = status
        self.headers = headers
        self._by_name = dict(reversed(headers))
        self._flow: Flow | None = flow
        self._pieces: list[bytes] = []
        self._size = 0
        self._ended = False
        self._broken: str | None = None
        self._waiter: asyncio.Future[None] | None = None

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
        return self._ended and self._broken is None

    async def read(self) -> bytes:
        """What has come since the last time, once there is any; nothing at the end. Raises BrokenResponseError."""
        while not self._pieces:
            if self._broken is not None:
                raise BrokenResponseError(self._broken)
            if self._ended:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self._size > MOST_BUFFERED and self._flow is not None:
            self._flow.resume()
        self._size = 0
        return data

    async def peek(self, most: int) -> bytes:
        """What it begins with: `most` bytes or a little more, or all of it. `read` still gives it.

        Of an answer that breaks it is what came before; `read` raises behind it.
        """
        text = b""
        with suppress(BrokenResponseError):
            while len(text) < most and (piece := await self.read()):
                text += piece
        if text:
            self._pieces.insert(0, text)
        return text

    def close(self) -> None:
        """Nobody reads any more of it."""
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.abort()

    def push(self, piece: bytes) -> None:
        """A piece has come."""
        self._pieces.append(piece)
        before, self._size = self._size, self._size + len(piece)
        if before <= MOST_BUFFERED < self._size and self._flow is not None:
            self._flow.pause()
        self._wake()

    def end(self, broken: str | None = None) -> None:
        """There is no more: the connection is no longer ours. `broken`: why, where it is not all of it."""
        self._ended, self._broken, self._flow = True, broken, None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
