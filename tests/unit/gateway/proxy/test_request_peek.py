"""Work that blocks the event loop runs in turns, each followed by a pause of three times its length."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from plimsoll_gateway.proxy.request_peek import CpuTimeSlices


class Time:
    """A clock that work and sleep advance."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def work(self, seconds: float) -> float:
        self.now += seconds
        return seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


async def test_every_turn_is_followed_by_a_rest() -> None:
    time = Time()
    turns = CpuTimeSlices(lambda: time.now, time.sleep)
    results = await asyncio.gather(*(turns.take(partial(time.work, each)) for each in (2.0, 1.0, 4.0)))
    assert results == [2.0, 1.0, 4.0]
    assert time.slept == [6.0, 3.0]  # no pause after the last turn
    time.now += 11.0
    await turns.take(lambda: time.work(1.0))
    assert time.slept[2:] == [1.0]


async def test_what_comes_late_does_not_wait() -> None:
    time = Time()
    turns = CpuTimeSlices(lambda: time.now, time.sleep)
    await turns.take(lambda: time.work(1.0))
    time.now += 3.0
    await turns.take(lambda: time.work(1.0))
    assert time.slept == []


async def test_work_that_fails_takes_its_turn_too() -> None:
    time = Time()
    turns = CpuTimeSlices(lambda: time.now, time.sleep)

    def fail() -> None:
        time.work(2.0)
        raise ValueError("as it must")

    with pytest.raises(ValueError, match="as it must"):
        await turns.take(fail)
    await turns.take(lambda: time.work(1.0))
    assert time.slept == [6.0]
