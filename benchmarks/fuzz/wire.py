"""Sends a request's bytes unchanged over loopback and reads the raw response: HTTP libraries would correct both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from fuzz.requests import Fuzzed

PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. `status` is None if the connection ended without one. `whole`: the body was received completely."""

    status: int | None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = True

    @property
    def media(self) -> str:
        """Media type of the body."""
        return self.headers.get("content-type", "").partition(";")[0]


class Hung(Exception):
    """A response had not ended after the time limit."""


async def send(url: str, asked: Fuzzed, patience: float) -> Answer:
    """Send a request and return its response. Raises Hung if the response has not ended after `patience` seconds."""
    place = urlsplit(url)
    try:
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=1 << 20)
            try:
                return await _exchange(reader, writer, asked)
            finally:
                writer.close()
    except TimeoutError as error:
        raise Hung(f"no end within {patience:g} s") from error
    except ConnectionError:
        return Answer(None)


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: Fuzzed) -> Answer:
    writer.write(asked.data)
    if not asked.answered:
        writer.write_eof()
    try:
        status, headers = await _head(reader)
        while status == 100:
            status, headers = await _head(reader)
    except asyncio.IncompleteReadError:
        return Answer(None)
    if asked.data.startswith(b"HEAD "):
        return Answer(status, headers)
    body, whole = bytearray(), True
    try:
        async for piece in _pieces(reader, headers):
            body += piece
            if asked.hang_up is not None and len(body) >= asked.hang_up:
                return Answer(status, headers, bytes(body), whole=False)
    except asyncio.IncompleteReadError:
        whole = False
    return Answer(status, headers, bytes(body), whole)


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return int(first.split()[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _pieces(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """Yield the pieces of the body. Raises IncompleteReadError if it is truncated."""
    if "content-length" in headers:
        left = int(headers["content-length"])
        while left:
            piece = await reader.read(min(left, PIECE))
            if not piece:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(piece)
            yield piece
    elif headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    else:
        while piece := await reader.read(PIECE):
            yield piece
