"""What ends the work on a request early: its client hangs up, or the gateway's grace period is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from plimsoll_gateway.proxy.body import ClientGone, Receive

Cause = Callable[[], Exception]
"""Makes the exception where it is raised. One kept anywhere would keep, by its traceback, all that its frames hold."""


class Cancellations:
    """All requests being answered, so that they can be cut together."""

    def __init__(self) -> None:
        self._active: set[Cancellation] = set()

    def __len__(self) -> int:
        return len(self._active)

    def hold(self, receive: Receive) -> Cancellation:
        """A context for the work on one request; `receive` has nothing more of its body. See `Cancellation`."""
        return Cancellation(receive, self._active)

    def cut_all(self, cause: Cause) -> None:
        """End all work now; each context raises what `cause` makes."""
        for line in tuple(self._active):
            line.cut(cause)


class Cancellation:
    """Runs its block in the current task and raises there what ended it: ClientGone, or the cause given to `cut`.

    The block is cancelled at its next await, so that everything it holds upstream is released at once. A task waits for
    the client's end.
    """

    def __init__(self, receive: Receive, active: set[Cancellation]) -> None:
        self._receive = receive
        self._active = active
        self._cause: Cause | None = None
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def cut(self, cause: Cause) -> None:
        """End the block; the first cause counts."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._active.discard(self)
        task, self._task = self._task, None
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
        if self._cause is not None and task is not None and kind is asyncio.CancelledError:
            task.uncancel()
            raise self._cause() from None
