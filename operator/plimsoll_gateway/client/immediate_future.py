"""A result that its task goes on with at once, not in a later round of the event loop.

A round costs an `epoll_wait`, and whatever else it finds to do comes first. What a transport reads is told by the event
loop itself, while no task runs, so that the one that waits for it can go on right there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class ImmediateFuture(asyncio.Future[ResultT]):
    """A future for one task that awaits it; all that is asyncio's own goes as with any other."""

    __slots__ = ("_context", "_then")

    _then: Callable[[Any], object] | None
    _context: Context | None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        _INIT(self, loop=loop)
        self._then = None

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """Call that once it is done: the task's own way to go on."""
        self._then, self._context = fn, context
        _ADD(self, fn, context=context)

    def hand_over(self, result: ResultT) -> None:
        """The result is there; returns once its task waits for something else, or has ended.

        Where a task runs now, the other one goes on in the next round. Raises InvalidStateError where it is done.
        """
        then, self._then = self._then, None
        if then is None or self._context is None or asyncio.current_task(self._loop) is not None:
            self.set_result(result)
        else:
            self.remove_done_callback(then)
            self.set_result(result)
            self._context.run(then, self)


_INIT, _ADD = asyncio.Future.__init__, asyncio.Future.add_done_callback  # super() would take as long as these
