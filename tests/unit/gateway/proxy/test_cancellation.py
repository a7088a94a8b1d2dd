"""What the connection tells of a caller, and that work ends when he does, with and without it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll_gateway.admission.body_memory import BodyMemory
from plimsoll_gateway.discovery.routing_table import TableStore
from plimsoll_gateway.proxy.body import ClientGone, Message, read_body
from plimsoll_gateway.proxy.cancellation import Cancellations
from plimsoll_gateway.proxy.exchange import EXTENSION, ClientConnection, connection_of
from plimsoll_gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Request, World


class Hears:
    """A `receive` on which a client that stays says nothing."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def __call__(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


@pytest.mark.parametrize("tells", [True, False])
async def test_work_ends_when_its_caller_hangs_up(tells: bool) -> None:
    active, hears = Cancellations(), Hears()
    connection = ClientConnection(lambda: None) if tells else None
    begun = asyncio.Event()

    async def work() -> None:
        with active.hold(hears, connection):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    assert len(active) == 1
    if connection is not None:
        connection.hang_up()
    else:
        hears.gone.set()
    with pytest.raises(ClientGone):
        await task
    assert len(active) == 0


async def test_work_does_not_begin_for_a_caller_who_has_gone() -> None:
    active, connection = Cancellations(), ClientConnection(lambda: None)
    connection.hang_up()
    with pytest.raises(ClientGone), active.hold(Hears(), connection):
        raise AssertionError("nobody is there to work for")
    assert len(active) == 0


async def test_a_caller_who_goes_after_the_work_ends_nothing() -> None:
    active, connection = Cancellations(), ClientConnection(lambda: None)
    with active.hold(Hears(), connection):
        pass
    connection.hang_up()
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


def test_a_server_that_is_not_ours_tells_nothing() -> None:
    assert connection_of({}) is None
    assert connection_of({"extensions": {EXTENSION: {"caller": "somebody"}}}) is None
    known = ClientConnection(lambda: None)
    assert connection_of({"extensions": {EXTENSION: {"caller": known}}}) is known


async def test_a_body_that_has_come_needs_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(_: float) -> Any:
        raise AssertionError("a timer")

    monkeypatch.setattr(asyncio, "timeout", timed)
    memory = BodyMemory(100, Metrics(TableStore()))

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    with await read_body(receive, {}, 10, memory, all_here=lambda: True) as body:
        assert bytes(body.view) == b"{}"
    with pytest.raises(AssertionError, match="a timer"):
        await read_body(receive, {}, 10, memory)


async def test_every_request_of_a_connection_has_its_own_caller(world: World) -> None:
    """One that is sent ahead of an answer, too: both end with the connection."""
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
