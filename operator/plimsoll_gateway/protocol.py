"""uvicorn's HTTP protocol with an end to its patience: the head of a request must come within a time.

uvicorn waits for ever for a head that has begun, and for one that never does on a fresh connection. Each costs a client
a few bytes, and the server a connection. An idle one between two requests is ended by uvicorn's own keep-alive timeout.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from plimsoll_gateway.errors import Refusal, head_too_slow

HEAD_SECONDS = 20.0


class PatientProtocol(H11Protocol):
    """One connection. Patience begins with it, and with the first byte of each later request; bytes do not renew it."""

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
            self._refuse(head_too_slow(HEAD_SECONDS))
        self.transport.close()

    def _refuse(self, refusal: Refusal) -> None:
        headers = [*refusal.headers, ("content-type", "application/json"), ("content-length", str(len(refusal.body)))]
        for event in (
            h11.Response(status_code=refusal.status, headers=headers),
            h11.Data(data=refusal.body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
