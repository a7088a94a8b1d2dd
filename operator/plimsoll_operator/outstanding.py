"""Writes that are under way: they end, well or not, before anybody else may act, whoever waits for them no more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class Outstanding:
    """The writes that are under way. Each has a time limit itself; `wait` waits for `seconds` at most."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._tasks: set[asyncio.Task[Any]] = set()

    async def see_through(self, write: Coroutine[Any, Any, ResultT]) -> ResultT:
        """The result of `write`, which goes on to its end even if the caller is cancelled."""
        task = asyncio.create_task(write)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def wait(self) -> None:
        """Return once they have ended."""
        if not self._tasks:
            return
        logger.info("waiting for %d writes that are under way", len(self._tasks))
        _, late = await asyncio.wait(self._tasks, timeout=self._seconds)
        if late:
            logger.warning("%d writes have not ended within %.0f s, and may still be done", len(late), self._seconds)
