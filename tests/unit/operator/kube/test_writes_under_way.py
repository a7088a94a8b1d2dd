"""Writes end before the context does, even if their callers are cancelled."""

from __future__ import annotations

import asyncio

import pytest
from operator_support import virtual_time

from plimsoll_operator.kube.api import WritesUnderWay


def test_a_write_whose_caller_is_cancelled_goes_on_and_is_waited_for() -> None:
    async def main() -> None:
        loop, done = asyncio.get_running_loop(), []

        async def write(seconds: float) -> None:
            await asyncio.sleep(seconds)
            done.append(seconds)

        writes_under_way = WritesUnderWay(9.0)
        callers = [asyncio.create_task(writes_under_way.see_through(write(seconds))) for seconds in (3.0, 5.0)]
        await asyncio.sleep(1.0)
        for caller in callers:
            caller.cancel()
        await asyncio.wait(callers)
        assert all(caller.cancelled() for caller in callers)
        assert (loop.time(), done) == (1.0, [])
        await writes_under_way.wait()
        assert (loop.time(), done) == (5.0, [3.0, 5.0])

    virtual_time.run(main())


def test_one_that_does_not_end_is_waited_for_no_longer_than_it_may_take(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        writes_under_way = WritesUnderWay(9.0)
        caller = asyncio.create_task(writes_under_way.see_through(asyncio.sleep(1e6)))
        await asyncio.sleep(1.0)
        caller.cancel()
        await writes_under_way.wait()
        assert asyncio.get_running_loop().time() == 10.0

    virtual_time.run(main())
    assert "1 writes have not ended within 9 s" in caplog.text


def test_what_comes_of_a_write_is_its_callers() -> None:
    async def fail() -> None:
        raise OSError("refused")

    async def main() -> None:
        writes_under_way = WritesUnderWay(9.0)
        assert await writes_under_way.see_through(asyncio.sleep(1.0, "done")) == "done"
        with pytest.raises(OSError, match="refused"):
            await writes_under_way.see_through(fail())
        await writes_under_way.wait()
        assert asyncio.get_running_loop().time() == 1.0

    virtual_time.run(main())
