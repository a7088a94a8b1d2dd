"""A result is gone on with at once where no task runs, and as any other future's elsewhere."""

from __future__ import annotations

import asyncio

import pytest

from plimsoll_gateway.client.immediate_future import ImmediateFuture


async def awaited(waited: ImmediateFuture[int], seen: list[int]) -> None:
    seen.append(await waited)


async def from_the_loop(waited: ImmediateFuture[int], result: int, seen: list[int]) -> list[int]:
    """What has been seen when the event loop has handed the result over, and done nothing else."""
    then: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

    def tell() -> None:
        waited.hand_over(result)
        then.set_result(list(seen))

    asyncio.get_running_loop().call_soon(tell)
    return await then


async def test_its_task_goes_on_before_anything_else() -> None:
    waited, seen = ImmediateFuture[int](asyncio.get_running_loop()), list[int]()
    task = asyncio.create_task(awaited(waited, seen))
    await asyncio.sleep(0)
    assert await from_the_loop(waited, 7, seen) == [7]
    assert task.done()


async def test_from_within_a_task_it_goes_on_in_the_next_round() -> None:
    waited, seen = ImmediateFuture[int](asyncio.get_running_loop()), list[int]()
    task = asyncio.create_task(awaited(waited, seen))
    await asyncio.sleep(0)
    waited.hand_over(7)
    assert seen == []
    await task
    assert seen == [7]


async def test_what_is_there_before_somebody_waits_is_not_waited_for() -> None:
    waited, seen = ImmediateFuture[int](asyncio.get_running_loop()), list[int]()
    assert await from_the_loop(waited, 7, seen) == []
    await awaited(waited, seen)
    assert seen == [7]


async def test_who_is_cancelled_gets_nothing() -> None:
    waited, seen = ImmediateFuture[int](asyncio.get_running_loop()), list[int]()
    task = asyncio.create_task(awaited(waited, seen))
    await asyncio.sleep(0)
    task.cancel()
    assert waited.cancelled()
    with pytest.raises(asyncio.InvalidStateError):
        waited.hand_over(7)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == []


async def test_a_failure_is_raised_as_by_any_future() -> None:
    waited, seen = ImmediateFuture[int](asyncio.get_running_loop()), list[int]()
    task = asyncio.create_task(awaited(waited, seen))
    await asyncio.sleep(0)
    waited.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await task
