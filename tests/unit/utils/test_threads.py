"""Slow work in threads: the awaiting task continues only after the thread has ended, even if it is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from plimsoll_runtime.utils.threads import in_thread_to_its_end


async def test_what_a_thread_gives_comes_back() -> None:
    assert await in_thread_to_its_end(lambda: 3) == 3


async def test_what_a_thread_raises_comes_back() -> None:
    def work() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        await in_thread_to_its_end(work)


async def test_cancelled_it_ends_after_its_thread() -> None:
    loop, began, released = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        loop.call_soon_threadsafe(began.set)
        released.wait()
        ended.append(True)

    waiting = asyncio.create_task(in_thread_to_its_end(work))
    await began.wait()
    waiting.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == [True]
