"""The HTTP server of the gateway, which drains before it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn

from plimsoll_gateway.app import Gateway
from plimsoll_gateway.server.connection_guard import ConnectionGuard, guarded

log = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 2  # for sending errors to the requests that outlived the grace period


@dataclass(frozen=True, slots=True)
class StopTimes:
    """The times of a stop, in seconds.

    For `lame_duck`, `/health` fails while requests are still served, so that load balancers choose other gateways. Then
    no connections are accepted, and running requests have `grace` to finish.
    """

    lame_duck: float
    grace: float


def _config(app: Any, protocol: type[ConnectionGuard], grace: int = 0, **options: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol,
        interface="asgi3",
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=grace + LAST_WORDS_SECONDS,
        **options,
    )


class GatewayServer(uvicorn.Server):
    """Runs a gateway on an open socket until SIGTERM or SIGINT; a second signal stops it immediately."""

    def __init__(self, gateway: Gateway, times: StopTimes) -> None:
        super().__init__(_config(gateway, guarded(gateway.connection_limit), int(times.grace), timeout_keep_alive=75))
        self._gateway = gateway
        self._times = times
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False

    async def run_on(self, sock: socket.socket) -> None:
        """Serve until stopped, then close the socket."""
        self._loop = asyncio.get_running_loop()
        await self.serve(sockets=[sock])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal (replaces uvicorn's handler, which would stop accepting connections immediately)."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop, signal.Signals(sig).name)

    def _stop(self, name: str) -> None:
        assert self._loop is not None
        if self._stopping:
            log.warning("%s again: stopping immediately", name)
            self.should_exit = self.force_exit = True
            self._gateway.cut()
            return
        self._stopping = True
        log.info("%s: draining", name)
        self._gateway.drain()
        self._loop.call_later(self._times.lame_duck, setattr, self, "should_exit", True)
        self._loop.call_later(self._times.lame_duck + self._times.grace, self._gateway.cut)


class MetricsServer(uvicorn.Server):
    """Serves /metrics and /demand on an open socket until `should_exit` is set. `GatewayServer` handles the signals."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(_config(gateway.operations, ConnectionGuard))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Override uvicorn's method: install no signal handlers."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a TCP socket that listens on this address. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=2048) as made:
        # Reopened by its descriptor, the socket knows that it is TCP. Only then does asyncio disable Nagle's algorithm
        # for accepted connections; otherwise many responses wait 40 ms for an acknowledgement.
        return socket.socket(fileno=made.detach())
