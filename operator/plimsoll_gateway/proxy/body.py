"""Request body: read within limits, kept for a second attempt, and dropped when the response begins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Self

from plimsoll_gateway.admission.body_memory import BodyMemory
from plimsoll_gateway.errors.refusals import Refusal, body_stalled, body_too_large, body_too_slow

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

MOST_OPTION = "--max-body-bytes"
IDLE_SECONDS = 60.0
# After the first minute a body must have arrived at this average rate: a client that sends a byte at times would hold
# its memory indefinitely.
SLOWEST_BYTES_PER_SECOND = 64 << 10
# Bytes beyond the limit that are read and discarded, so that a client that sends everything before it reads gets the
# 413 instead of a broken pipe.
DISCARD_BYTES = 64 << 20
DISCARD_SECONDS = 5.0


class ClientGone(Exception):
    """The client disconnected before its request was read or answered completely."""


class Body:
    """The bytes of one request body. They count in `BodyMemory` until they are dropped, at the end of `with` at the
    latest.
    """

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    @property
    def view(self) -> memoryview:
        """The bytes without a copy. A view that outlives `drop` keeps them in memory."""
        return memoryview(self._data)

    def add(self, piece: bytes) -> None:
        """Append bytes. Raises Refusal 503 if they do not fit into `BodyMemory`."""
        self._memory.take(len(piece), len(self._data) + len(piece))
        self._data += piece

    def drop(self) -> None:
        """Free the bytes. Further calls have no effect."""
        size, self._data = len(self._data), bytearray()
        self._memory.give(size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


async def read_body(
    receive: Receive,
    headers: Mapping[bytes, bytes],
    limit: int,
    memory: BodyMemory,
    clock: Callable[[], float] = time.monotonic,
    option: str = MOST_OPTION,
) -> Body:
    """Read a complete body of at most `limit` bytes, which `option` sets; never holds more.

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
    """Raise Refusal 415 for a compressed body."""
    if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise Refusal(415, "Compressed request bodies are not supported.", code="unsupported_encoding")


def check_pace(size: int, seconds: float) -> None:
    """Raise Refusal 408 if a body took more than IDLE_SECONDS + size / SLOWEST_BYTES_PER_SECOND to arrive."""
    if seconds > IDLE_SECONDS + size / SLOWEST_BYTES_PER_SECOND:
        raise body_too_slow(SLOWEST_BYTES_PER_SECOND)


def _check_declared(length: bytes, limit: int, memory: BodyMemory, option: str) -> None:
    """Raise Refusal 413 if the declared length exceeds `limit`, 503 if it does not fit into the body memory now."""
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
    """Return the next chunk of a body, and whether there are more. Raises Refusal 408 if none arrives, or
    ClientGone.
    """
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            message = await receive()
    except TimeoutError:
        raise body_stalled(IDLE_SECONDS) from None
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


async def discard_unread(receive: Receive, headers: Mapping[bytes, bytes]) -> None:
    """Read and discard the rest of a body, within limits, so that the client gets the refusal that follows."""
    if b"expect" not in headers:  # a client that waits for 100-continue has sent nothing yet
        await _discard(receive)


async def _discard(receive: Receive) -> None:
    """Read and discard at most DISCARD_BYTES of a body, for at most DISCARD_SECONDS."""
    left = DISCARD_BYTES
    more = True
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            while more and left > 0:
                piece, more = await next_piece(receive)
                left -= len(piece)
    except TimeoutError:
        return
