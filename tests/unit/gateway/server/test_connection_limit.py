"""The number of connections is limited: idle ones are closed, busy ones stay, and probes are always answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plimsoll_gateway.admission.limits import CONNECTION_BYTES, Limits, connections_for
from plimsoll_gateway.discovery.routing_table import TableStore
from plimsoll_gateway.server.connection_limit import MOST_EXTRA, YOUNG_SECONDS, ConnectionLimit
from plimsoll_gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Request, World

RunWorld = Callable[..., contextlib.AbstractAsyncContextManager[Any]]
MOST = 3


class FakeConnection:
    """Records whether it was closed."""

    def __init__(self) -> None:
        self.gone = False

    def give_way(self) -> None:
        self.gone = True


class ConnectionsMachine(RuleBasedStateMachine):
    """Connections open, send requests, are answered and close, while time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.metrics = Metrics(TableStore())
        self.bound = ConnectionLimit(MOST, self.metrics, lambda: self.now)
        self.live: list[tuple[FakeConnection, bool]] = []
        self.busy: set[FakeConnection] = set()
        self.idle_since: dict[FakeConnection, float] = {}

    @rule()
    def come(self) -> None:
        made = FakeConnection()
        old = [one for one, since in self.idle_since.items() if self.now - since >= YOUNG_SECONDS]
        within = [one for one, inside in self.live if inside]
        inside = self.bound.opened(made)
        assert inside == (len(within) < MOST or bool(old))
        gone = [one for one, _ in self.live if one.gone]
        if len(within) == MOST and old:
            assert gone == [min(old, key=lambda one: self.idle_since[one])]
        else:
            assert not gone or (not inside and gone[0] not in within)
        self.live = [(one, was) for one, was in self.live if not one.gone] + [(made, inside)]
        for one in gone:
            self.idle_since.pop(one, None)
        if inside:
            self.idle_since[made] = self.now

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        if self.live:
            one, _ = data.draw(st.sampled_from(self.live))
            self.bound.busy(one)
            self.idle_since.pop(one, None)

    @rule(data=st.data())
    def be_answered(self, data: st.DataObject) -> None:
        if self.live:
            one, inside = data.draw(st.sampled_from(self.live))
            self.bound.idle(one)
            self.idle_since.pop(one, None)
            if inside:
                self.idle_since[one] = self.now

    @rule(data=st.data(), twice=st.booleans())
    def go(self, data: st.DataObject, twice: bool) -> None:
        if self.live:
            gone = data.draw(st.sampled_from(self.live))
            for _ in range(1 + twice):
                self.bound.closed(gone[0])
            self.live.remove(gone)
            self.idle_since.pop(gone[0], None)

    @rule(seconds=st.sampled_from([YOUNG_SECONDS / 2, YOUNG_SECONDS]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def counts(self) -> None:
        self.bound.check_integrity()
        assert len(self.bound) == len(self.live)
        assert self.metrics.connections._value.get() == len(self.live)


TestConnections = ConnectionsMachine.TestCase
TestConnections.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_beyond_the_bound_the_newest_are_heard() -> None:
    bound = ConnectionLimit(1, Metrics(TableStore()))
    busy = FakeConnection()
    assert bound.opened(busy)
    bound.busy(busy)
    extra = [FakeConnection() for _ in range(MOST_EXTRA + 1)]
    assert not any(bound.opened(one) for one in extra)
    assert [one.gone for one in extra] == [True] + [False] * MOST_EXTRA
    assert not busy.gone


def test_how_many_there_may_be_follows_from_memory_and_open_files() -> None:
    assert connections_for(512 << 20, 1 << 20) == 4096
    assert connections_for(1 << 40, 1024) == 448
    assert connections_for(1, 1) == 1
    limits = Limits(connections=10).resolved()
    assert (limits.connections, limits.waiting) == (10, 5)
    assert Limits(waiting=7, connections=10).resolved().waiting == 7
    found = Limits().resolved()
    assert found.waiting == found.connections // 2 > 0
    assert CONNECTION_BYTES == 64 << 10


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def ask(self, line: str = "GET /live", body: str = "") -> None:
        self.writer.write(f"{line} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())

    async def answer(self) -> tuple[int, Any]:
        async with asyncio.timeout(60):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return int(head.split()[1]), json.loads(await self.reader.readexactly(length))

    async def closed(self) -> None:
        async with asyncio.timeout(60):
            assert await self.reader.read() == b""


Connect = Callable[[Any], Awaitable[Client]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Open raw connections to a gateway, closed at the end."""
    made: list[Client] = []

    async def open_one(world: World) -> Client:
        made.append(Client(*await asyncio.open_connection("127.0.0.1", int(world.url.rpartition(":")[2]))))
        return made[-1]

    yield open_one
    for client in made:
        client.writer.close()
        with contextlib.suppress(ConnectionError):
            await client.writer.wait_closed()


async def test_an_idle_connection_gives_way_and_a_busy_one_does_not(run_world: RunWorld, connect: Connect) -> None:
    arrived: asyncio.Queue[Request] = asyncio.Queue()
    now = 0.0
    async with run_world(limits=Limits(connections=2), bounded=lambda: now) as world:
        await world.model(arrived.put)
        busy, idle = await connect(world), await connect(world)
        busy.ask("POST /v1/completions", '{"model": "m"}')
        request = await arrived.get()
        idle.ask()
        assert (await idle.answer())[0] == 200
        now = 5.0
        newcomer = await connect(world)
        await idle.closed()
        newcomer.ask("GET /v1/models")
        assert (await newcomer.answer())[0] == 200
        request.respond(200, "{}")
        assert await busy.answer() == (200, {})
        assert world.gateway._metrics.connections_closed.labels("idle")._value.get() == 1


async def test_beyond_the_bound_only_probes_are_answered(run_world: RunWorld, connect: Connect) -> None:
    arrived: asyncio.Queue[Request] = asyncio.Queue()
    async with run_world(limits=Limits(connections=1), bounded=lambda: 0.0) as world:
        upstream = await world.model(arrived.put)
        busy = await connect(world)
        busy.ask("POST /v1/completions", '{"model": "m"}')
        request = await arrived.get()
        for path in ("/live", "/health?verbose"):
            probe = await connect(world)
            probe.ask(f"GET {path}")
            assert (await probe.answer())[0] == 200
            await probe.closed()
        for line, body in (("POST /v1/completions", '{"model": "m"}'), ("GET /v1/models", "")):
            refused = await connect(world)
            refused.ask(line, body)
            status, said = await refused.answer()
            assert (status, said["error"]["code"]) == (503, "overloaded")
            assert "it has reached its limit of 1 connections (--max-connections)" in said["error"]["message"]
            await refused.closed()
        request.respond(200, "{}")
        assert await busy.answer() == (200, {})
        assert len(upstream.requests) == 1
        assert world.gateway._metrics.connections_closed.labels("refused")._value.get() == 2
        busy.writer.close()
        while len(world.gateway.connection_limit):
            await asyncio.sleep(0)
        world.gateway.connection_limit.check_integrity()
        again = await connect(world)
        again.ask("GET /v1/models")
        assert (await again.answer())[0] == 200
