"""The HTTP server around the gateway: it stops in three steps, so that nobody notices."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

import uvicorn

from plimsoll_gateway.app import Gateway
from plimsoll_gateway.server.connection_guard import ConnectionGuard, guarded

log = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 2  # for the errors that end what outlived the grace period


@dataclass(frozen=True, slots=True)
class StopTimes:
    """How a stop goes.

    For `lame_duck` seconds `/health` fails while everything is still served: load balancers take that long to look
    elsewhere. Then no more connections are accepted, and for `grace` seconds running answers may finish.
    """

    lame_duck: float
    grace: float


class GatewayServer(uvicorn.Server):
    """Runs a gateway on an open socket until SIGTERM or SIGINT; a second signal stops at once."""

    def __init__(self, gateway: Gateway, times: StopTimes) -> None:
        super().__init__(
            uvicorn.Config(
                gateway,
                access_log=False,
                http=guarded(gateway.connection_limit),
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=int(times.grace) + LAST_WORDS_SECONDS,
                timeout_keep_alive=75,
                ws="none",
            )
        )
        self._gateway = gateway
        self._times = times
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False

    async def run_on(self, sock: socket.socket) -> None:
        """Serve; returns once stopped. Closes the socket."""
        self._loop = asyncio.get_running_loop()
        await self.serve(sockets=[sock])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal (replaces uvicorn's own handler, which would stop accepting at once)."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop, signal.Signals(sig).name)

    def _stop(self, name: str) -> None:
        assert self._loop is not None
        if self._stopping:
            log.warning("%s again: stopping at once", name)
            self.should_exit = self.force_exit = True
            self._gateway.cut()
            return
        self._stopping = True
        log.info("%s: draining", name)
        self._gateway.drain()
        self._loop.call_later(self._times.lame_duck, setattr, self, "should_exit", True)
        self._loop.call_later(self._times.lame_duck + self._times.grace, self._gateway.cut)


class MetricsServer(uvicorn.Server):
    """Serves what operators are told on an open socket until `should_exit` is set; signals are the other's."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(
            uvicorn.Config(
                gateway.operations,
                access_log=False,
                http=ConnectionGuard,
                interface="asgi3",
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=LAST_WORDS_SECONDS,
                ws="none",
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """An open socket. Raises OSError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=2048) as made:
        # Opened again by its descriptor, it knows that it is TCP. Only then does asyncio switch Nagle's algorithm
        # off for what it accepts; otherwise many an answer waits 40 ms for an acknowledgement.
        return socket.socket(fileno=made.detach())
