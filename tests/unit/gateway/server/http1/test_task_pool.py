"""Work is begun at once by a task that has done its last, and no task that somebody wants to end is used again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from plimsoll_gateway.server.http1.task_pool import MOST_IDLE, Workers


class Site:
    """Workers, those that are at work, and which task did what."""

    def __init__(self) -> None:
        self.workers = Workers()
        self.running: set[asyncio.Task[None]] = set()
        self.done: list[tuple[str, asyncio.Task[None]]] = []

    async def work(self, name: str, until: asyncio.Event | None = None) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert task in self.running
        try:
            if until is not None:
                await until.wait()
            self.done.append((name, task))
        finally:
            self.running.discard(task)

    def start(self, name: str, until: asyncio.Event | None = None) -> None:
        self.workers.start(self.work(name, until), self.running, asyncio.get_running_loop())

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.done]


async def by_the_loop(what: Callable[[], None]) -> None:
    """Let the event loop do it, outside of a task."""
    asyncio.get_running_loop().call_soon(what)
    await asyncio.sleep(0)


async def test_one_that_is_idle_begins_at_once() -> None:
    site = Site()
    site.start("first")
    await asyncio.sleep(0)
    assert len(site.workers) == 1

    def second() -> None:
        site.start("second")
        assert site.names == ["first", "second"]

    await by_the_loop(second)
    assert site.names == ["first", "second"]
    assert site.done[0][1] is site.done[1][1]
    assert site.running == set()
    assert len(site.workers) == 1


async def test_who_waits_holds_up_nobody() -> None:
    site, open_ = Site(), asyncio.Event()
    site.start("slow", open_)
    await asyncio.sleep(0)
    site.start("quick")
    await asyncio.sleep(0)
    assert site.names == ["quick"]
    open_.set()
    await asyncio.sleep(0)
    assert site.names == ["quick", "slow"]
    assert len(site.workers) == 2


async def test_one_that_was_to_end_takes_no_more_work() -> None:
    site, open_ = Site(), asyncio.Event()
    site.start("unwanted", open_)
    await asyncio.sleep(0)
    (task,) = site.running

    async def shrug() -> None:
        """As uvicorn does, which lets nothing through."""
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        site.running.discard(task)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    site.workers.start(shrug(), site.running, asyncio.get_running_loop())
    await asyncio.sleep(0)
    (task,) = site.running
    task.cancel()
    await task
    assert len(site.workers) == 0


async def test_one_that_is_ended_while_idle_is_passed_over() -> None:
    site = Site()
    site.start("first")
    await asyncio.sleep(0)
    site.done[0][1].cancel()
    site.start("second")
    await asyncio.sleep(0)
    assert site.names == ["first", "second"]
    assert site.done[0][1] is not site.done[1][1]
    assert site.done[0][1].cancelled()


async def test_none_stays_behind_the_end() -> None:
    before = asyncio.all_tasks()
    site, open_ = Site(), asyncio.Event()
    site.start("slow", open_)
    site.start("quick")
    await asyncio.sleep(0)
    assert len(site.workers) == 1
    site.workers.end()
    open_.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert site.names == ["quick", "slow"]
    assert asyncio.all_tasks() == before
    assert len(site.workers) == 0


async def test_a_burst_leaves_no_more_than_so_many() -> None:
    site = Site()
    for number in range(MOST_IDLE + 5):
        site.start(str(number))
    await asyncio.sleep(0)
    assert len(site.done) == MOST_IDLE + 5
    assert len(site.workers) == MOST_IDLE
    assert site.running == set()
