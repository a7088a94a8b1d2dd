"""Requests to replicas through aiohttp, with time limits, TCP keep-alive probes, and errors that tell what can be
retried.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, Iterable
from typing import Self

import aiohttp
from yarl import URL

from plimsoll_gateway.client.errors import ConnectError, ConnectTimeoutError, InvalidResponseError, ResetError, text_of
from plimsoll_gateway.client.response import MOST_PIECE, Response

CONNECT_SECONDS = 5.0
# A replica whose node has vanished sends nothing, not even a reset; generations may be silent for minutes. Keep-alive
# probes detect it: 15 s of silence, then 3 probes 5 s apart.
PROBE_AFTER_SECONDS, PROBE_EVERY_SECONDS, PROBES = 15, 5, 3
# Shorter than the 75 s after which a replica closes an idle connection, so that requests rarely use a closing one.
KEEP_ALIVE_SECONDS = 30.0
MOST_LINE_BYTES = 32 << 10
"""The most bytes of a response's status line, and of each of its headers."""
PIECE = 64 << 10
"""The most bytes of a body that are written at once."""
NOTHING = memoryview(b"")
_UNCHANGED = frozenset(["GET", "HEAD", "POST"])
"""Methods that do not need `once`: aiohttp never repeats POST, and the others change nothing."""
_OWN_FIELDS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add to those of the client."""

Headers = Iterable[tuple[bytes, bytes]]
Pieces = AsyncGenerator[bytes, None]


class Pool:
    """An HTTP client; the end of its `async with` block closes all connections."""

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, socket_factory=probed_socket)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS),
            skip_auto_headers=_OWN_FIELDS,
            auto_decompress=False,
            read_bufsize=MOST_PIECE,
            max_line_size=MOST_LINE_BYTES,
            max_field_size=MOST_LINE_BYTES,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await asyncio.sleep(0)  # transports report their end in the next iteration of the loop

    async def ask(
        self, url: str, method: str, target: str, headers: Headers = (), body: memoryview | Pieces = NOTHING
    ) -> Response:
        """Send a request to the replica at `url` and wait for the response's headers. Raises UpstreamError, and any
        error of the iterator `body`.

        `target`: encoded path and query, appended to the path of the URL. Without a length in `headers`, the body is
        sent in chunks.
        """
        fields = [(name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in headers]
        data: memoryview | Pieces | None = body
        if isinstance(body, memoryview):
            data = (body if len(body) <= PIECE else _in_pieces(body)) if len(body) else None
        try:
            asked = self._session.request(
                method,
                URL(url.rstrip("/") + target, encoded=True),
                headers=fields,
                data=data,
                allow_redirects=False,
                middlewares=None if method in _UNCHANGED else (once,),
            )
            return Response(await asked)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ServerTimeoutError):
            raise ConnectTimeoutError(f"no connection within {CONNECT_SECONDS:g} s") from None
        except (aiohttp.ClientConnectorError, aiohttp.NonHttpUrlClientError, ValueError) as error:
            raise ConnectError(text_of(error)) from None
        except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError) as error:
            raise InvalidResponseError(text_of(error)) from None
        except aiohttp.ClientError as error:
            cause = error.__cause__
            if cause is not None and not isinstance(cause, (OSError, aiohttp.ClientError)):
                raise cause from None  # an error of the body's iterator
            raise ResetError(text_of(error)) from None


async def once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from repeating a request, which it does if a kept-alive connection ends before the response."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise ResetError(text_of(error)) from None


async def _in_pieces(body: memoryview) -> Pieces:
    for at in range(0, len(body), PIECE):
        yield bytes(body[at : at + PIECE])


def probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket with TCP keep-alive probes."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":  # elsewhere there is only laptop mode, on a single machine
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    return made
