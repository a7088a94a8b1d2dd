"""Turns for work that holds up the event loop: one piece of it at a time, with a rest after each.

Whatever comes in, everything else gets at least three quarters of the time, and waits for one piece at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

# So many times as long as the work was: a small request needs several rounds of the loop, and not each shall meet work.
REST = 3

ResultT = TypeVar("ResultT")


class Turns:
    """Lets callers in one by one, in the order in which they came."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._lock = asyncio.Lock()
        self._rested = 0.0  # when the rest is over

    async def take(self, work: Callable[[], ResultT]) -> ResultT:
        """The result of `work`, which is called in its turn."""
        async with self._lock:
            while (left := self._rested - self._clock()) > 0:
                await self._sleep(left)
            began = self._clock()
            try:
                return work()
            finally:
                ended = self._clock()
                self._rested = ended + REST * (ended - began)
