"""Slow work beside an event loop, in threads that never keep a process from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

ResultT = TypeVar("ResultT")


async def in_daemon_thread(work: Callable[[], ResultT]) -> ResultT:
    """What `work` returns or raises. Cancelled, the thread goes on to its end, and nobody hears of it."""
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
