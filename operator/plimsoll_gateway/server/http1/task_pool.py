"""Tasks that outlive what they do: to make one for each request costs more than to give it to one that has done its
last, and that one begins at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from plimsoll_gateway.client.immediate_future import ImmediateFuture

Work = Coroutine[Any, Any, None]
MOST_IDLE = 64
"""Some 2 KiB each. A burst makes more, which end with their work."""


class Workers:
    """Those of one event loop."""

    def __init__(self) -> None:
        self._idle: list[tuple[asyncio.Task[None], ImmediateFuture[Work | None]]] = []
        self._ended = False

    def __len__(self) -> int:
        return len(self._idle)

    def start(self, work: Work, running: set[asyncio.Task[None]], loop: asyncio.AbstractEventLoop) -> None:
        """Let a task do this, which is among those that are `running` when it begins; the work takes it out."""
        while self._idle:
            task, wanted = self._idle.pop()
            if not wanted.done():
                running.add(task)
                wanted.hand_over(work)
                return
        running.add(loop.create_task(self._go_on(work, loop)))

    def end(self) -> None:
        """None stays: those that are idle end now, the others with their work."""
        self._ended = True
        for _, wanted in self._idle:
            if not wanted.done():
                wanted.set_result(None)
        self._idle.clear()

    async def _go_on(self, first: Work, loop: asyncio.AbstractEventLoop) -> None:
        task, work = asyncio.current_task(), cast(Work | None, first)
        assert task is not None
        while work is not None:
            await work
            if self._ended or task.cancelling() or len(self._idle) >= MOST_IDLE:
                return
            wanted: ImmediateFuture[Work | None] = ImmediateFuture(loop)
            self._idle.append((task, wanted))
            work = await wanted
