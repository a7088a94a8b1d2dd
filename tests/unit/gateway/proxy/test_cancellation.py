"""What the connection tells of a caller, and that work ends when he does, with and without it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll_gateway.admission.body_memory import Budget
from plimsoll_gateway.discovery.routing_table import TableStore
from plimsoll_gateway.proxy.body import ClientGone, Message, read_body
from plimsoll_gateway.proxy.cancellation import Lifelines
from plimsoll_gateway.proxy.exchange import EXTENSION, Caller, caller_of
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
    lines, hears = Lifelines(), Hears()
    caller = Caller(lambda: None) if tells else None
    begun = asyncio.Event()

    async def work() -> None:
        with lines.hold(hears, caller):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    assert len(lines) == 1
    if caller is not None:
        caller.hang_up()
    else:
        hears.gone.set()
    with pytest.raises(ClientGone):
        await task
    assert len(lines) == 0


async def test_work_does_not_begin_for_a_caller_who_has_gone() -> None:
    lines, caller = Lifelines(), Caller(lambda: None)
    caller.hang_up()
    with pytest.raises(ClientGone), lines.hold(Hears(), caller):
        raise AssertionError("nobody is there to work for")
    assert len(lines) == 0


async def test_a_caller_who_goes_after_the_work_ends_nothing() -> None:
    lines, caller = Lifelines(), Caller(lambda: None)
    with lines.hold(Hears(), caller):
        pass
    caller.hang_up()
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


def test_a_server_that_is_not_ours_tells_nothing() -> None:
    assert caller_of({}) is None
    assert caller_of({"extensions": {EXTENSION: {"caller": "somebody"}}}) is None
    known = Caller(lambda: None)
    assert caller_of({"extensions": {EXTENSION: {"caller": known}}}) is known


async def test_a_body_that_has_come_needs_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(_: float) -> Any:
        raise AssertionError("a timer")

    monkeypatch.setattr(asyncio, "timeout", timed)
    budget = Budget(100, Metrics(TableStore()))

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    with await read_body(receive, {}, 10, budget, all_here=lambda: True) as body:
        assert bytes(body.view) == b"{}"
    with pytest.raises(AssertionError, match="a timer"):
        await read_body(receive, {}, 10, budget)


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
