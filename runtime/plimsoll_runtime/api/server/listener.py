"""The listening socket and the HTTP server on it: TLS, timeouts, origins and the log's format."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Literal

import h11
import msgspec
import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from plimsoll_runtime.api.http.errors import OPENAI, ApiError
from plimsoll_runtime.api.server.config import ListenerOptions
from plimsoll_runtime.errors import AddressError, UsageError

HEAD_SECONDS = 20.0


class PatientProtocol(H11Protocol):
    """One connection. The timeout runs from its start, and from the first byte of each later request; more bytes do not
    renew it.

    uvicorn itself waits for ever, both for a head that has begun and for the first one of a new connection: a client
    could keep a connection open for a few bytes. Idle connections between two requests end by uvicorn's own keep-alive
    timeout.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new client."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Bytes, of a head or of what follows one."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever wanted it."""
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Run the timer exactly while a head is awaited."""
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
        if self.conn.trailing_data[0]:  # who has sent nothing would take the answer for that to its first request
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
    """The application, for web pages of these origins."""
    if not origins:
        return app
    return CORSMiddleware(app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED)


class Certificate:
    """What a server proves itself with. New connections get what the files say by then: certificates are renewed while
    a server runs. Files that cannot be used leave the last ones in force, and the log says so.
    """

    def __init__(self, chain: Path, key: Path) -> None:
        """Raises UsageError where the files cannot be used."""
        self._files = chain, key
        try:
            self._stamps = self._look()
            self.context = self._loaded()
        except OSError as error:  # ssl's errors are some, too
            raise UsageError(
                f"--tls-certificate {chain} and --tls-key {key} cannot be used ({error}): they must be PEM, and belong "
                "together"
            ) from error

    def renew(self) -> None:
        """Look whether the files have changed."""
        try:
            stamps = self._look()
            if stamps == self._stamps:
                return
            self._stamps = stamps
            self._loaded()  # one that fails half way would be a context without a key
            self.context.load_cert_chain(*self._files)
            logger.info("the certificate was read again")
        except OSError as error:
            logger.error("the certificate cannot be read again, and the one read before stays in use: %s", error)

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._files)
        return context

    def _look(self) -> Stamps:
        found = (file.stat() for file in self._files)
        return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in found)


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
        """Called ten times a second; whether to end."""
        if self._certificate is not None and counter % CERTIFICATE_TICKS == 0:
            self._certificate.renew()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: whoever runs the server handles them."""
        yield


class JsonLines(logging.Formatter):
    """Each line an object: time, level, logger, message, and the `fields` that a record carries beside its message."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as a line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def begin_log(form: Literal["text", "json"]) -> None:
    """Log to standard error from here on."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if form == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
