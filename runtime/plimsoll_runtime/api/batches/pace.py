"""How many lines of batches are asked at once: a bound, and a part of it beside live requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

LOOK_SECONDS = 0.2
"""How long it may take to be seen that no request of a client is in flight any more."""
CROWDED = 4
"""By how much the bound is divided while one is."""


class Pace:
    """Lets lines begin. `live`: how many requests of clients are in flight. Used on the event loop only."""

    def __init__(self, most: int, live: Callable[[], int]) -> None:
        self.most = most
        self._live = live
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._look: asyncio.TimerHandle | None = None

    @property
    def allowed(self) -> int:
        """How many lines may be under way now."""
        return max(1, self.most // CROWDED) if self._live() else self.most

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A line's time with the engine, which begins when there is room, in the order of asking."""
        begins = asyncio.get_running_loop().create_future()
        self._waiting.append(begins)
        self._let_in()
        try:
            await begins
            yield
        finally:
            if begins.done() and not begins.cancelled():
                self._under_way -= 1
                self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._under_way < self.allowed:
            begins = self._waiting.popleft()
            if not begins.done():
                begins.set_result(None)
                self._under_way += 1
        if self._waiting and self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._let_in()
