"""Connections to all replicas: opens them, and keeps them for the next requests."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from plimsoll_gateway.client.connection import Connection, Pieces
from plimsoll_gateway.client.errors import ConnectError, ConnectTimeoutError
from plimsoll_gateway.client.response import Response


@dataclass(frozen=True, slots=True)
class Origin:
    """`name`: what the Host header says. `prefix`: the path of the URL, to which those of requests are added."""

    host: str
    port: int
    tls: bool
    name: bytes
    prefix: bytes


def read_origin(url: str) -> Origin:
    """The origin of an http or https URL. Raises ValueError where there is no host, or the port is none."""
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError(f"{url!r} names no host")
    tls = parts.scheme == "https"
    name = parts.netloc.rpartition("@")[2]
    return Origin(parts.hostname, parts.port or (443 if tls else 80), tls, name.encode("idna"), parts.path.encode())


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


# Shorter than the 75 s after which a replica closes an idle connection, so that we rarely send into a closing one.
KEEP_ALIVE_SECONDS = 30.0
MOST_ORIGINS = 4096
NOTHING = memoryview(b"")
Dial = Callable[[Origin, Callable[[], Connection]], Awaitable[Connection]]


class Pool:
    """Used with `async with`, at whose end all connections do. Changed on the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, dial: Dial = dial) -> None:
        self._clock = clock
        self._dial = dial
        self._origins: dict[str, Origin] = {}
        self._idle: dict[Origin, list[Connection]] = {}
        self._open: dict[Connection, Origin] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def ask(self, url: str, request: bytes, headers: bytes, body: memoryview | Pieces = NOTHING) -> Response:
        """Send to the replica at `url` and wait for the head of its answer. Raises UpstreamError, and what a body
        raises that comes in pieces.

        `request`: method and target, as `POST /v1/completions`. `headers`: lines, each with its end, without Host.
        """
        origin = self._origin(url)
        method, _, target = request.partition(b" ")
        head = b"%s %s%s HTTP/1.1\r\nhost: %s\r\n%s\r\n" % (method, origin.prefix, target, origin.name, headers)
        connection = self._take(origin) or await self._connect(origin)
        return await connection.ask(head, body)

    def _origin(self, url: str) -> Origin:
        found = self._origins.get(url)
        if found is None:
            try:
                found = read_origin(url)
            except ValueError as error:
                raise ConnectError(str(error)) from None
            if len(self._origins) >= MOST_ORIGINS:  # replicas come and go
                self._origins.clear()
            self._origins[url] = found
        return found

    def _take(self, origin: Origin) -> Connection | None:
        """The one that was used last, if it is still good."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if not idle:
                del self._idle[origin]
            if connection.usable:
                if self._clock() - connection.rested < KEEP_ALIVE_SECONDS:
                    return connection
                connection.close()
        return None

    async def _connect(self, origin: Origin) -> Connection:
        connection = await self._dial(origin, lambda: Connection(partial(self._rested, origin), self._gone))
        self._open[connection] = origin
        return connection

    def _rested(self, origin: Origin, connection: Connection) -> None:
        connection.rested = self._clock()
        self._idle.setdefault(origin, []).append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEEP_ALIVE_SECONDS, self._close_old)

    def _gone(self, connection: Connection) -> None:
        origin = self._open.pop(connection, None)
        idle = None if origin is None else self._idle.get(origin)
        if origin is not None and idle and connection in idle:
            idle.remove(connection)
            if not idle:
                del self._idle[origin]

    def _close_old(self) -> None:
        """Close what has been idle for too long, and look again while anything is idle."""
        before = self._clock() - KEEP_ALIVE_SECONDS
        for origin, idle in list(self._idle.items()):
            for connection in [one for one in idle if one.rested <= before]:
                idle.remove(connection)
                connection.close()
            if not idle:
                del self._idle[origin]
        self._sweep = asyncio.get_running_loop().call_later(KEEP_ALIVE_SECONDS, self._close_old) if self._idle else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in tuple(self._open):
            connection.abort()
        await asyncio.sleep(0)  # transports tell of their ends in the next round

    def check_integrity(self) -> None:
        """Raise AssertionError where the records contradict each other."""
        idle = [connection for several in self._idle.values() for connection in several]
        assert all(self._idle.values()), "an origin is kept for nothing"
        assert len(idle) == len(set(idle)), "a connection is idle twice"
        assert set(idle) <= self._open.keys(), "one is idle that is not open"
        assert not self._idle or self._sweep is not None, "nobody will close what is idle"
