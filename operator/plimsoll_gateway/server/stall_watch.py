"""Connections whose client takes nothing of what waits for it: they end, and what answers them is free."""

from __future__ import annotations

import asyncio

STALL_SECONDS = 60.0


class StallWatch:
    """Ends a connection whose client takes nothing of what waits for it within a time; one that reads slowly stays."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = 0  # bytes, when it was looked last

    def begin(self) -> None:
        """Watch while bytes wait, if any do."""
        if self._timer is None:
            self._look_again()

    def end(self) -> None:
        """The client has taken what there was, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() < self._waiting:
            self._look_again()
        else:
            self._transport.abort()

    def _look_again(self) -> None:
        self._waiting = self._transport.get_write_buffer_size()
        if self._waiting:
            self._timer = self._loop.call_later(STALL_SECONDS, self._look)
