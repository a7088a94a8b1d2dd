"""The body of a request: read within its limits, kept for a second attempt, dropped when the answer begins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Self

from plimsoll_gateway.admission.body_memory import BodyMemory
from plimsoll_gateway.errors.refusals import Refusal, body_stalled, body_too_large, body_too_slow

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

MOST_OPTION = "--max-body-bytes"
IDLE_SECONDS = 60.0
# After the first minute a body must have come at this rate: who sends a byte now and then holds its memory for ever.
SLOWEST_BYTES_PER_SECOND = 64 << 10
# How much more than the limit is read and thrown away, so that a client which sends all before it listens sees the
# 413 rather than a broken pipe.
DISCARD_BYTES = 64 << 20
DISCARD_SECONDS = 5.0


class ClientGone(Exception):
    """The client hung up before its request was complete: nobody is left to answer."""


class Body:
    """The bytes of one request. They count in `BodyMemory` until they are dropped, by the end of `with`."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    @property
    def view(self) -> memoryview:
        """The bytes in place. Whoever still holds the view when they are dropped keeps them alive."""
        return memoryview(self._data)

    def add(self, piece: bytes) -> None:
        """Append. Raises Refusal 503 where `BodyMemory` has no room for it."""
        self._memory.take(len(piece), len(self._data) + len(piece))
        self._data += piece

    def drop(self) -> None:
        """Nobody needs it any more. The second time it changes nothing."""
        size, self._data = len(self._data), bytearray()
        self._memory.give(size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()


async def read_body(
    receive: Receive,
    headers: Mapping[bytes, bytes],
    limit: int,
    memory: BodyMemory,
    clock: Callable[[], float] = time.monotonic,
    option: str = MOST_OPTION,
) -> Body:
    """The whole body, at most `limit` bytes, as `option` says; more than that is never held.

    Raises Refusal (413, 408, 415, 503) or ClientGone. `headers` have lower-case names.
    """
    check_encoding(headers)
    try:
        _check_declared(headers.get(b"content-length", b""), limit, memory, option)
    except Refusal:
        await discard_unread(receive, headers)
        raise
    body = Body(memory)
    try:
        await _fill(body, receive, limit, clock, option)
    except BaseException:
        body.drop()
        raise
    return body


def check_encoding(headers: Mapping[bytes, bytes]) -> None:
    """Raise Refusal 415 for a body that is compressed."""
    if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise Refusal(415, "Compressed request bodies are not supported.", code="unsupported_encoding")


def check_pace(size: int, seconds: float) -> None:
    """Raise Refusal 408 where so many bytes have taken too long."""
    if seconds > IDLE_SECONDS + size / SLOWEST_BYTES_PER_SECOND:
        raise body_too_slow(SLOWEST_BYTES_PER_SECOND)


def _check_declared(length: bytes, limit: int, memory: BodyMemory, option: str) -> None:
    """Raise Refusal where what the client means to send is too much already."""
    if not length.isdigit():
        return
    if int(length) > limit:
        raise body_too_large(limit, option)
    memory.check(int(length), int(length))


async def _fill(body: Body, receive: Receive, limit: int, clock: Callable[[], float], option: str) -> None:
    began = clock()
    more = True
    while more:
        piece, more = await next_piece(receive)
        try:
            if len(body) + len(piece) > limit:
                raise body_too_large(limit, option)
            body.add(piece)
        except Refusal:
            body.drop()
            if more:
                await _discard(receive)
            raise
        if more:
            check_pace(len(body), clock() - began)


async def next_piece(receive: Receive) -> tuple[bytes, bool]:
    """The next piece of a body, and whether there are more. Raises Refusal 408 where none comes, or ClientGone."""
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            message = await receive()
    except TimeoutError:
        raise body_stalled(IDLE_SECONDS) from None
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


async def discard_unread(receive: Receive, headers: Mapping[bytes, bytes]) -> None:
    """Let a client send what nobody will read, within bounds, so that it sees the refusal that follows."""
    if b"expect" not in headers:  # who waits for 100-continue has sent nothing yet
        await _discard(receive)


async def _discard(receive: Receive) -> None:
    """Read on, within bounds, and keep nothing."""
    left = DISCARD_BYTES
    more = True
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            while more and left > 0:
                piece, more = await next_piece(receive)
                left -= len(piece)
    except TimeoutError:
        return
