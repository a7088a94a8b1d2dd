"""uvicorn's HTTP protocol with a timeout for the head of a request.

uvicorn itself waits for ever, both for a head that has begun and for the first one of a new connection: a client could
hold a connection for a few bytes. Idle connections between two requests end by uvicorn's own keep-alive timeout.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from plimsoll_runtime.api.http.dialect import OPENAI
from plimsoll_runtime.api.http.errors import ApiError

HEAD_SECONDS = 20.0


class PatientProtocol(H11Protocol):
    """One connection. The timeout runs from its start, and from the first byte of each later request; more bytes do not
    renew it.
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
