"""Clients on raw sockets, well-behaved and abusive."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

LARGE = 8 << 20  # the gateway's limit on most paths
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def padded(model: str, size: int) -> bytes:
    """Return the JSON body of a completion request, padded to `size` bytes."""
    frame = b'{"model": "%s", "prompt": ""}' % model.encode()
    return frame[:-2] + b"x" * (size - len(frame)) + frame[-2:]


def bombs(model: str) -> dict[str, bytes]:
    """Return request bodies by name. All are expensive to parse and have about the largest allowed size (LARGE), except
    the last one, which is larger.
    """
    head = b'{"model": "%s", "prompt": ' % model.encode()

    def filled(unit: bytes, begin: bytes = b"[0", end: bytes = b"]}") -> bytes:
        room = LARGE - len(head) - len(begin) - len(end)
        return head + begin + unit * (room // len(unit)) + end

    return {
        "lists": filled(b",[0]"),
        "empty lists": filled(b",[]"),
        "objects": filled(b',{"a":{}}'),
        "tokens": filled(b",106201"),
        "keys": head + b"0," + b",".join(b'"%07d":0' % index for index in range(LARGE // 12 - 10)) + b"}",
        "one key": head + b'0,"' + b"k" * (LARGE - 1000) + '😀":0}'.encode(),
        "depth": head + b"[" * (LARGE - len(head)),
        "too large": head + b"[" + b"[0]," * LARGE + b"0]}",
    }


@dataclass
class Stream:
    """A connection on which the head of a response was read."""

    status: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        """Close the connection."""
        self.writer.transport.abort()


async def begin(port: int, body: bytes) -> Stream:
    """Send a completion request with this body on a new connection, and read the head of its response. Raises OSError,
    asyncio.IncompleteReadError.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body))
        writer.write(body)
        answer = await reader.readuntil(b"\r\n\r\n")
    except BaseException:
        writer.transport.abort()
        raise
    return Stream(int(answer.split(b" ", 2)[1]), reader, writer)


async def ask(port: int, body: bytes) -> int:
    """Send a completion request on a new connection, disconnect after the response's head, and return the status."""
    stream = await begin(port, body)
    stream.close()
    return stream.status


async def half(port: int, sent: bytes) -> asyncio.StreamWriter:
    """Return a connection on which the beginning of a request, `sent`, was sent."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    return writer
