"""Limits a rate evenly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class RateLimiter:
    """A bucket of one token, refilled `rate` times a second: at most `rate` + 1 tokens are taken in a second."""

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._pause = 1 / rate
        self._clock = clock
        self._sleep = sleep
        self._next = 0.0

    async def take(self) -> None:
        """Wait for a token."""
        now = self._clock()
        due = max(now, self._next)
        self._next = due + self._pause
        if due > now:
            await self._sleep(due - now)
