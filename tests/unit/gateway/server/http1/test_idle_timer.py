"""A connection is ended once it has been idle for so long, however many requests there were, and no sooner."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from operator_support.virtual_time import run

from plimsoll_gateway.server.http1.idle_timer import IdleTimer

SECONDS = 10.0
STEPS = st.lists(st.tuples(st.sampled_from(["begin", "end"]), st.floats(0.5, 25)), max_size=12)


@given(STEPS)
def test_it_expires_after_so_long_without_a_request(steps: list[tuple[str, float]]) -> None:
    async def story() -> None:
        loop, found = asyncio.get_running_loop(), list[float]()
        timer = IdleTimer(loop, SECONDS, lambda: found.append(loop.time()))
        for step, rest in steps:
            getattr(timer, step)()
            began = loop.time()
            await asyncio.sleep(rest)
            if step == "begin" and rest > SECONDS + 0.1:
                assert len(found) == 1
                assert abs(found[0] - began - SECONDS) < 0.01
                timer.stop()
                return
            if step == "end" or rest < SECONDS - 0.1:
                assert found == []
            if found:
                return
        timer.stop()

    run(story())


def test_one_that_is_gone_does_not_expire() -> None:
    async def story() -> None:
        found: list[str] = []
        timer = IdleTimer(asyncio.get_running_loop(), SECONDS, lambda: found.append("expired"))
        timer.begin()
        timer.stop()
        await asyncio.sleep(3 * SECONDS)
        assert found == []

    run(story())


def test_there_is_one_timer_however_many_requests_come() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        timer = IdleTimer(loop, SECONDS, lambda: None)
        made = []
        later = loop.call_later
        loop.call_later = lambda *given, **more: made.append(given) or later(*given, **more)  # type: ignore[method-assign,func-returns-value]
        for _ in range(100):
            timer.begin()
            timer.end()
        assert len(made) == 1
        timer.stop()

    run(story())
