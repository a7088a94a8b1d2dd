"""A listening socket and the HTTP server on it, without signals of its own."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from plimsoll_runtime.api.http.door import Certificate, Door
from plimsoll_runtime.api.http.protocol import PatientProtocol
from plimsoll_runtime.errors import AddressError

CLOSE_SECONDS = 2.0
"""How long open connections may take to close once nothing is in flight."""
KEEP_ALIVE_SECONDS = 75
BACKLOG = 2048
CERTIFICATE_TICKS = 50
"""Tenths of a second between two looks at the files of a certificate."""


def listen(host: str, port: int, options: str = "--host or --port") -> socket.socket:
    """A listening socket. Raises AddressError when the address cannot be had; `options` are those that choose it."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise AddressError(f"cannot listen on {host}:{port} ({error}); choose another {options}") from error
    # Opened again by its descriptor it knows that it is TCP; only then does asyncio switch Nagle's algorithm off
    # for what it accepts. Otherwise the events of a stream wait for acknowledgements, 40 ms at a time.
    listener = socket.socket(fileno=listener.detach())
    listener.setblocking(False)
    return listener


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling, which knows no drain."""

    def __init__(self, app: ASGIApp, door: Door | None = None) -> None:
        """Raises UsageError where the door's certificate cannot be used."""
        door = door or Door()
        self._certificate: Certificate | None = None
        if door.certificate is not None and door.key is not None:
            self._certificate = Certificate(door.certificate, door.key)
        super().__init__(
            uvicorn.Config(
                door.around(app),
                http=PatientProtocol,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=int(CLOSE_SECONDS),
            )
        )

        if self._certificate is not None:
            self.config.load()
            self.config.ssl = self._certificate.context

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; whether to end."""
        if self._certificate is not None and counter % CERTIFICATE_TICKS == 0:
            self._certificate.renew()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: whoever runs the server handles them."""
        yield
