"""Threads next to an event loop, and how soon a waiting thread gets Python's lock."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

ResultT = TypeVar("ResultT")


async def in_thread_to_its_end(work: Callable[[], ResultT]) -> ResultT:
    """What `work` returns or raises. Cancelled, this ends once the thread has: only then may what it uses be closed."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    finally:
        await asyncio.gather(working, return_exceptions=True)


async def in_daemon_thread(work: Callable[[], ResultT]) -> ResultT:
    """What `work` returns or raises. Cancelled, the thread goes on to its end, and nobody hears of it. It never keeps
    the process from ending.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ResultT] = loop.create_future()

    def succeed(result: ResultT) -> None:
        if not future.done():
            future.set_result(result)

    def fail(error: BaseException) -> None:
        if not future.done():
            future.set_exception(error)

    def run() -> None:
        try:
            settle, outcome = succeed, work()
        except BaseException as error:  # noqa: BLE001 - handed to whoever awaits
            settle, outcome = fail, error  # type: ignore[assignment]
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, daemon=True).start()
    return await future


SECONDS = 1e-4


@contextmanager
def quick_switches() -> Iterator[None]:
    """While the block runs, a thread that wants the lock has it after `SECONDS`, for Python's own five milliseconds.

    A step of a small model takes less than these, so that the thread which computes would stand still after each for
    as long as another has Python to run.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
