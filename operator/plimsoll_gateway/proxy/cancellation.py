"""Cancels the work on a request if its client disconnects or the gateway's grace period ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from plimsoll_gateway.proxy.body import ClientGone, Receive

Cause = Callable[[], Exception]
"""Creates the exception where it is raised. The traceback of a stored one would keep all objects of its frames
alive.
"""


class Cancellations:
    """All requests being answered, so that they can be cancelled together."""

    def __init__(self) -> None:
        self._active: set[Cancellation] = set()

    def __len__(self) -> int:
        return len(self._active)

    def hold(self, receive: Receive) -> Cancellation:
        """Return the context for the work on one request, whose body has been read from `receive`."""
        return Cancellation(receive, self._active)

    def cut_all(self, cause: Cause) -> None:
        """Cancel all work; each context raises the exception that `cause` creates, unless it is being cancelled."""
        for cancellation in tuple(self._active):
            cancellation.cut(cause)


class Cancellation:
    """The work on one request, in the task that enters it.

    Raises the reason for its cancellation: ClientGone, or the exception of `cut_all`. The block is cancelled at its
    next await, so that it releases its upstream resources immediately. A separate task waits for the client to
    disconnect.
    """

    def __init__(self, receive: Receive, active: set[Cancellation]) -> None:
        self._receive = receive
        self._active = active
        self._cause: Cause | None = None
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def cut(self, cause: Cause) -> None:
        """Cancel the work, unless it has ended or is being cancelled."""
        if self._cause is None and self._task is not None:
            self._cause = cause
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.cut(ClientGone)

    def __enter__(self) -> None:
        self._watcher = asyncio.create_task(self._watch())
        self._task = asyncio.current_task()
        self._active.add(self)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._active.discard(self)
        task, self._task = self._task, None
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
        if self._cause is not None and task is not None and kind is asyncio.CancelledError:
            task.uncancel()
            raise self._cause() from None
