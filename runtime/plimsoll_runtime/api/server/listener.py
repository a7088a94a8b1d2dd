"""The listening socket and the HTTP server on it: TLS, timeouts and CORS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path

import h11
import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from plimsoll_runtime.api.http.errors import OPENAI, ApiError
from plimsoll_runtime.api.server.config import ListenerOptions
from plimsoll_runtime.errors import AddressError, UsageError

HEAD_SECONDS = 20.0


class PatientProtocol(H11Protocol):
    """An HTTP connection with a timeout for each request's headers. It runs from the connection's start, and from the
    first byte of each later request; more bytes do not extend it.

    uvicorn has no such timeout, neither for incomplete headers nor for a new connection without any: a client could
    keep a connection open for a few bytes. uvicorn's own keep-alive timeout closes idle connections between two
    requests.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of a new connection."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Parse data, and update the timer."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Run the timer exactly while headers are awaited."""
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        # a client that has sent nothing would take this for the response to its first request
        if self.conn.trailing_data[0]:
            self._refuse()
        self.transport.close()

    def _refuse(self) -> None:
        message = f"The headers of the request did not end within {HEAD_SECONDS:g} s."
        error = ApiError(message, status=HTTPStatus.REQUEST_TIMEOUT, code="request_timeout")
        answer = OPENAI.response(error)
        for event in (
            h11.Response(status_code=error.status, headers=[*answer.raw_headers, (b"connection", b"close")]),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")


logger = logging.getLogger(__name__)

EXPOSED = ("X-Request-Id", "request-id", "Retry-After", "x-plimsoll-ignored")
Stamps = tuple[tuple[int, int, int], ...]


def _with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Return the application with CORS for these origins."""
    if not origins:
        return app
    return CORSMiddleware(app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED)


class Certificate:
    """The server's certificate. New connections use renewed files while the server runs. Unusable files leave the
    previous certificate in use, with an error in the log."""

    def __init__(self, chain: Path, key: Path) -> None:
        """Raises UsageError if the files cannot be used."""
        self._files = chain, key
        try:
            self._stamps = self._look()
            self.context = self._loaded()
        except OSError as error:  # ssl's errors are OSErrors too
            raise UsageError(
                f"--tls-certificate {chain} and --tls-key {key} cannot be used ({error}); they must be PEM, of the "
                "same certificate"
            ) from error

    def renew(self) -> None:
        """Read the files again if they have changed."""
        try:
            stamps = self._look()
            if stamps == self._stamps:
                return
            self._stamps = stamps
            self._loaded()  # check first: loading that fails halfway would leave a context without a key
            self.context.load_cert_chain(*self._files)
            logger.info("the certificate was reloaded")
        except OSError as error:
            logger.error("the certificate cannot be reloaded; the previous one stays in use: %s", error)

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._files)
        return context

    def _look(self) -> Stamps:
        found = (file.stat() for file in self._files)
        return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in found)


CLOSE_SECONDS = 2.0
"""How long open connections may take to close once no request is in flight."""
KEEP_ALIVE_SECONDS = 75
BACKLOG = 2048
CERTIFICATE_TICKS = 50
"""Tenths of a second between two checks of the certificate's files."""


def listen(host: str, port: int, options: str = "--host or --port") -> socket.socket:
    """Return a listening socket. Raises AddressError if the address cannot be used; `options` are the flags that
    choose it."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise AddressError(f"cannot listen on {host}:{port} ({error}); choose another {options}") from error
    # A socket opened again from its descriptor knows that it is TCP; only then does asyncio switch off Nagle's
    # algorithm for accepted connections. Otherwise the events of a stream wait for acknowledgements, 40 ms each.
    listener = socket.socket(fileno=listener.detach())
    listener.setblocking(False)
    return listener


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling, which cannot drain."""

    def __init__(self, app: ASGIApp, listener_options: ListenerOptions | None = None) -> None:
        """Raises UsageError if the certificate cannot be used."""
        listener_options = listener_options or ListenerOptions()
        self._certificate: Certificate | None = None
        if listener_options.certificate is not None and listener_options.key is not None:
            self._certificate = Certificate(listener_options.certificate, listener_options.key)
        super().__init__(
            uvicorn.Config(
                _with_cors(app, listener_options.origins),
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
        """Check the certificate's files every CERTIFICATE_TICKS calls (uvicorn makes ten a second). Return whether the
        server has to end."""
        if self._certificate is not None and counter % CERTIFICATE_TICKS == 0:
            self._certificate.renew()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller."""
        yield
