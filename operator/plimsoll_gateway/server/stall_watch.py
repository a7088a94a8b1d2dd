"""Closes connections whose client reads nothing of a pending response, which frees the resources of the request."""

from __future__ import annotations

import asyncio

STALL_SECONDS = 60.0


class StallWatch:
    """Aborts a connection whose client has read none of the pending bytes for STALL_SECONDS; a slow reader stays."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = 0  # pending bytes at the last check

    def begin(self) -> None:
        """Start the checks if bytes are pending."""
        if self._timer is None:
            self._look_again()

    def end(self) -> None:
        """Stop the checks: the client has read everything, or has disconnected."""
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
