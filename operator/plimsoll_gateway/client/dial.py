"""Opening a connection to a replica."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable

from plimsoll_gateway.client.connection import Connection
from plimsoll_gateway.client.errors import ConnectError, ConnectTimeoutError
from plimsoll_gateway.client.origin import Origin

CONNECT_SECONDS = 5.0
# A replica whose node has vanished sends nothing, not even a reset; generations may be silent for minutes.
# Keep-alive probes find out: 15 s of silence, then 3 probes 5 s apart.
PROBE_AFTER_SECONDS, PROBE_EVERY_SECONDS, PROBES = 15, 5, 3


async def dial(origin: Origin, made: Callable[[], Connection]) -> Connection:
    """What `made` returns, connected. Raises ConnectError."""
    context = ssl.create_default_context() if origin.tls else None
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            transport, connection = await loop.create_connection(made, origin.host, origin.port, ssl=context)
    except TimeoutError:
        raise ConnectTimeoutError(f"no connection within {CONNECT_SECONDS:g} s") from None
    except OSError as error:
        raise ConnectError(str(error) or type(error).__name__) from None
    _probe(transport.get_extra_info("socket"))
    return connection


def _probe(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # with Nagle's algorithm a request may wait 40 ms
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":  # elsewhere there is only the one machine of laptop mode to lose
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
