"""Work for a client ends when it disconnects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from plimsoll_gateway.proxy.body import ClientGone, Message
from plimsoll_gateway.proxy.cancellation import Cancellations

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Request, World


class Hears:
    """A `receive` of a client that stays connected and sends nothing."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def __call__(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_work_ends_when_its_caller_hangs_up() -> None:
    active, hears = Cancellations(), Hears()
    begun = asyncio.Event()

    async def work() -> None:
        with active.hold(hears):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    assert len(active) == 1
    hears.gone.set()
    with pytest.raises(ClientGone):
        await task
    assert len(active) == 0


async def test_a_caller_who_goes_after_the_work_ends_nothing() -> None:
    active, hears = Cancellations(), Hears()
    with active.hold(hears):
        pass
    hears.gone.set()
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_every_request_of_a_connection_has_its_own_caller(world: World) -> None:
    """Also one that is pipelined: both end with the connection."""
    arrived = asyncio.Event()

    async def hang(request: Request) -> None:
        arrived.set()

    upstream = await world.model(hang)
    _, writer = await asyncio.open_connection("127.0.0.1", int(world.url.rpartition(":")[2]))
    body = b'{"model": "m"}'
    one = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    writer.write(one + one)
    async with asyncio.timeout(10):
        await arrived.wait()
        writer.transport.abort()
        await upstream.requests[0].hung_up.wait()
        while len(world.gateway._running):
            await asyncio.sleep(0)
