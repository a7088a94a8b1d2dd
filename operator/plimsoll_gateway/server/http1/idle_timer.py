"""Connections that ask nothing more: one timer each, which runs on through their requests.

To make a timer at the end of each answer and to cancel it at the next request takes longer than to look, once it is
due, at how long the connection has been idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TICK = 0.001  # seconds that are none: what a timer may be early by


class IdleTimer:
    """Calls `expired` once its connection has been idle for `seconds`."""

    __slots__ = ("_expired", "_loop", "_seconds", "_since", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expired: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._expired = expired
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """It is idle from now on."""
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def end(self) -> None:
        """It is not idle any more."""
        self._since = None

    def stop(self) -> None:
        """It is gone."""
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._since is None:
            return
        left = self._since + self._seconds - self._loop.time()
        if left > TICK:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._expired()
