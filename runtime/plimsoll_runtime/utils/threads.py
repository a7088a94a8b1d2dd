"""Threads next to an event loop, and Python's switch interval between threads."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

ResultT = TypeVar("ResultT")


async def in_thread_to_its_end(work: Callable[[], ResultT]) -> ResultT:
    """Run `work` in a thread and return its result. If cancelled, wait for the thread, so that resources it uses can be
    closed safely.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    finally:
        await asyncio.gather(working, return_exceptions=True)


async def in_daemon_thread(work: Callable[[], ResultT]) -> ResultT:
    """Run `work` in a daemon thread and return its result. If cancelled, the thread continues and its result is
    dropped. It never keeps the process from exiting.
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
        except BaseException as error:  # noqa: BLE001 - passed to the awaiting task
            settle, outcome = fail, error  # type: ignore[assignment]
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, daemon=True).start()
    return await future


SECONDS = 1e-4


@contextmanager
def quick_switches() -> Iterator[None]:
    """Shorten Python's thread switch interval from 5 ms to `SECONDS` within the context.

    A step of a small model takes less than 5 ms, so otherwise the computing thread would wait that long after each step
    while another thread runs Python.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
