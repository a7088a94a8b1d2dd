"""Cancels the work on a request if its client disconnects or the gateway's grace period ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from plimsoll_gateway.proxy.body import ClientGone, Receive

Cause = Callable[[], Exception]
"""Creates the exception where it is raised. The traceback of a stored one would keep all objects of its frames
alive.
"""


class Cancellations:
    """All requests being answered, each in its own task, so that they can be cancelled together."""

    def __init__(self) -> None:
        self._causes: dict[asyncio.Task[object], Cause | None] = {}

    def __len__(self) -> int:
        return len(self._causes)

    @contextmanager
    def hold(self, receive: Receive) -> Iterator[None]:
        """Run the work on one request, whose body has been read from `receive`, in the current task.

        Raises the reason for its cancellation: ClientGone, or the exception of `cut_all`. The block is cancelled at its
        next await, so that it releases its upstream resources immediately. A separate task waits for the client to
        disconnect.
        """
        task = asyncio.current_task()
        assert task is not None
        self._causes[task] = None
        watcher = asyncio.create_task(self._watch(receive, task))
        try:
            yield
        except asyncio.CancelledError:
            if (cause := self._causes[task]) is None:
                raise
            task.uncancel()
            raise cause() from None
        finally:
            watcher.cancel()
            del self._causes[task]

    def cut_all(self, cause: Cause) -> None:
        """Cancel all work; each context raises the exception that `cause` creates, unless it is being cancelled."""
        for task in self._causes:
            self._cut(task, cause)

    async def _watch(self, receive: Receive, task: asyncio.Task[object]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._cut(task, ClientGone)

    def _cut(self, task: asyncio.Task[object], cause: Cause) -> None:
        if task in self._causes and self._causes[task] is None:
            self._causes[task] = cause
            task.cancel()
