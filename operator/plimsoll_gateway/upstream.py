"""The client side of the proxy: connections to replicas."""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractCookieJar, AbstractStreamWriter
from yarl import URL

from plimsoll_gateway.body import Body
from plimsoll_gateway.headers import RawHeaders, Voucher, request_headers
from plimsoll_gateway.quota.usage import Meter
from plimsoll_gateway.route.scores import ANYTHING, Wanted
from plimsoll_gateway.table import Replica

CONNECT_SECONDS = 5.0
# Shorter than the 75 s after which a replica closes an idle connection, so that we rarely send into a closing one.
KEEP_ALIVE_SECONDS = 30.0
# A replica whose node has vanished sends nothing, not even a reset; generations may be silent for minutes.
# Keep-alive probes find out: 15 s of silence, then 3 probes 5 s apart.
PROBE_AFTER_SECONDS, PROBE_EVERY_SECONDS, PROBES = 15, 5, 3

TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
PIECE = 64 << 10
# No connection was made: the replica has seen nothing of the request.
CONNECT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
# The connection broke before an answer began. Either the replica died, or it had closed a kept-alive connection
# just as we wrote to it; generating is free of side effects, so a second attempt is safe both times.
RESET_ERRORS = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
UPSTREAM_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)
NO_AUTO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it will be sent to a replica; the same for every attempt, of which the body outlives none.

    `came`: when it arrived, by time.monotonic. `wanted`: what it would like to find there. With keys, `voucher` says
    whose it is, and `meter` counts its tokens.
    """

    path: str
    query: str
    headers: RawHeaders
    body: Body
    request_id: str
    model_name: str
    wanted: Wanted = ANYTHING
    voucher: Voucher | None = None
    meter: Meter | None = None
    came: float = 0.0


def open_session() -> aiohttp.ClientSession:
    """A session for all upstreams: no cookies, no limits, no decompression, no proxies of the environment."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, socket_factory=_probed_socket)
    jar: AbstractCookieJar = aiohttp.DummyCookieJar()
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=jar,
        timeout=TIMEOUT,
        auto_decompress=False,
        skip_auto_headers=NO_AUTO_HEADERS,
    )


def _probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    # asyncio does this only where the address says that it is TCP; with Nagle's algorithm a request waits 40 ms.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":  # elsewhere there is only the one machine of laptop mode to lose
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    return made


class _Payload(aiohttp.Payload):
    """Sends bytes from where they are, in pieces."""

    _autoclose = True

    def __init__(self, view: memoryview) -> None:
        super().__init__(view)
        self._size: int = len(view)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for at in range(0, self._size, PIECE):
            await writer.write(self._value[at : at + PIECE])
            await asyncio.sleep(0)  # a replica that takes everything at once must not stop the others' streams

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """aiohttp's name for the same, with the length that it has read from `size`."""
        await self.write(writer)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """For aiohttp's debugging."""
        return str(self._value, encoding, errors)


async def is_alive(session: aiohttp.ClientSession, replica: Replica) -> bool:
    """Whether the replica answers its /health in time, with whatever status: one that loads or drains is alive."""
    try:
        async with session.get(f"{replica.url}/health", timeout=HEALTH_TIMEOUT, allow_redirects=False):
            return True
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


async def post(session: aiohttp.ClientSession, replica: Replica, call: Call) -> aiohttp.ClientResponse:
    """Send the call to one replica and wait for the headers of its answer.

    Raises aiohttp.ClientError or TimeoutError. Closing the response ends the request upstream.
    """
    query = f"?{call.query}" if call.query else ""
    return await session.post(
        URL(f"{replica.url}{call.path}{query}", encoded=True),
        data=_Payload(call.body.view),
        headers=request_headers(call.headers, call.request_id, call.voucher),
        allow_redirects=False,
    )
