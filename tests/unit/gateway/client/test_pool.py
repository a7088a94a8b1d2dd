"""Whatever becomes of connections, each serves one request at a time, and none is kept that is of no use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plimsoll_gateway.client import pool as pools
from plimsoll_gateway.client.connection import Connection
from plimsoll_gateway.client.errors import ConnectError, ConnectTimeoutError, UpstreamError
from plimsoll_gateway.client.pool import KEEP_ALIVE_SECONDS, Origin, Pool, dial, read_origin
from plimsoll_gateway.client.response import Response

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

URLS = ("http://one:1", "http://two:2/base")
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
LAST = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Wire(asyncio.Transport):
    """Ends as a real one does: its protocol hears of it in the next round."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection
        self.asked = 0
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing, "a request is sent into a connection that is closed"
        self.asked += 1

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    close = abort

    def resume_reading(self) -> None:
        pass


class Pooled(RuleBasedStateMachine):
    """Requests on wires that the test holds the other end of."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 100.0
        self.wires: list[Wire] = []
        self.pending: list[tuple[asyncio.Task[Response], Wire]] = []
        self.pool = Pool(lambda: self.now, self.dial)

    async def dial(self, origin: Origin, made: Callable[[], Connection]) -> Connection:
        connection = made()
        wire = Wire(connection)
        connection.connection_made(wire)
        self.wires.append(wire)
        return connection

    def run(self, act: Callable[[], object]) -> None:
        async def acted() -> None:
            act()
            for _ in range(4):
                await asyncio.sleep(0)

        self.loop.run_until_complete(acted())

    @rule(url=st.sampled_from(URLS))
    def ask(self, url: str) -> None:
        before = {wire: wire.asked for wire in self.wires}
        idle = sum(len(several) for several in self.pool._idle.values())
        stale = [wire for wire in self.wires if self.now - wire.connection.rested >= KEEP_ALIVE_SECONDS]

        def act() -> None:
            self.task = asyncio.ensure_future(self.pool.ask(url, b"GET /", b""))

        self.run(act)
        (wire,) = [wire for wire in self.wires if wire.asked != before.get(wire, 0)]
        assert wire not in [busy for _, busy in self.pending], "two requests share a connection"
        assert wire not in before or idle, "a connection was used that was not idle"
        assert wire not in stale or wire not in before, "a connection was used that its replica may be closing"
        self.pending.append((self.task, wire))

    @precondition(lambda self: self.pending)
    @rule(index=st.integers(0, 9), text=st.sampled_from([OK, LAST, OK + OK, b"what?"]))
    def response(self, index: int, text: bytes) -> None:
        task, wire = self.pending.pop(index % len(self.pending))
        self.run(lambda: wire.connection.data_received(text))
        assert task.done()
        if text == b"what?":
            assert isinstance(task.exception(), UpstreamError)
        else:
            assert task.result().status == 200
        assert wire.closing is (text != OK)

    @precondition(lambda self: self.pending)
    @rule(index=st.integers(0, 9))
    def give_up(self, index: int) -> None:
        task, wire = self.pending.pop(index % len(self.pending))
        self.run(task.cancel)
        assert task.cancelled()
        assert wire.closing

    @precondition(lambda self: self.wires)
    @rule(index=st.integers(0, 99))
    def lose(self, index: int) -> None:
        wire = self.wires[index % len(self.wires)]
        self.run(wire.abort)
        lost = [task for task, busy in self.pending if busy is wire]
        self.pending = [(task, busy) for task, busy in self.pending if busy is not wire]
        assert all(isinstance(task.exception(), UpstreamError) for task in lost)

    @precondition(lambda self: self.wires)
    @rule(index=st.integers(0, 99))
    def speak_unasked(self, index: int) -> None:
        wire = self.wires[index % len(self.wires)]
        if not wire.closing and wire not in [busy for _, busy in self.pending]:
            self.run(lambda: wire.connection.data_received(OK))
            assert wire.closing

    @rule(seconds=st.floats(0.0, 2 * KEEP_ALIVE_SECONDS))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        if self.pool._sweep is not None:
            self.pool._sweep.cancel()
            self.run(self.pool._close_old)
            kept = [one for several in self.pool._idle.values() for one in several]
            assert all(self.now - one.rested < KEEP_ALIVE_SECONDS for one in kept)

    @invariant()
    def records(self) -> None:
        self.pool.check_integrity()
        busy = [wire for _, wire in self.pending]
        idle = [one for several in self.pool._idle.values() for one in several]
        for wire in self.wires:
            assert (wire.connection in self.pool._open) is not wire.closing
            assert (wire.connection in idle) is (not wire.closing and wire not in busy)

    def teardown(self) -> None:
        async def leave() -> None:
            async with self.pool:
                pass
            await asyncio.gather(*(task for task, _ in self.pending), return_exceptions=True)

        self.loop.run_until_complete(leave())
        assert all(wire.closing for wire in self.wires)
        assert self.pool._open == {}
        self.loop.close()


TestPool = Pooled.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_an_origin_is_what_its_url_says() -> None:
    assert read_origin("http://a:8000") == Origin("a", 8000, False, b"a:8000", b"")
    assert read_origin("https://a/b") == Origin("a", 443, True, b"a", b"/b")
    assert read_origin("http://u:p@[::1]:80") == Origin("::1", 80, False, b"[::1]:80", b"")


@pytest.mark.parametrize("url", ["http://", "http://a:b", "http://a:99999", "http://[::1", "http://a..b"])
async def test_a_url_that_names_no_host_is_an_error_that_quotes_it(url: str) -> None:
    async with Pool() as pool:
        with pytest.raises(ConnectError):
            await pool.ask(url, b"GET /", b"")


async def test_a_path_of_the_url_comes_before_that_of_the_request(world: World, ok: Behaviour) -> None:
    upstream = await world.upstream(ok)
    async with Pool() as pool:
        response = await pool.ask(f"http://127.0.0.1:{upstream.port}/base", b"POST /v1/x?y", b"content-length: 2\r\n",
                                memoryview(b"{}"))  # fmt: skip
        assert await response.read() == b'{"ok": true}'
    assert upstream.requests[0].line == "POST /base/v1/x?y HTTP/1.1"
    assert upstream.requests[0].headers == {"host": f"127.0.0.1:{upstream.port}", "content-length": "2"}
    assert upstream.requests[0].body == b"{}"


async def test_requests_one_after_the_other_share_a_connection(world: World, ok: Behaviour) -> None:
    upstream = await world.upstream(ok)
    async with Pool() as pool:
        for _ in range(3):
            response = await pool.ask(f"http://127.0.0.1:{upstream.port}", b"GET /", b"")
            assert await response.read() == b'{"ok": true}'
    assert len({request.writer for request in upstream.requests}) == 1


async def test_a_large_body_and_its_answer_pass_a_real_socket(world: World) -> None:
    async def echo(request: Request) -> None:
        request.respond(200, request.body.decode())

    upstream = await world.upstream(echo)
    body = b"0123456789" * 300_000
    async with Pool() as pool:
        length = b"content-length: %d\r\n" % len(body)
        response = await pool.ask(f"http://127.0.0.1:{upstream.port}", b"POST /", length, memoryview(body))
        text = b""
        while piece := await response.read():
            text += piece
    assert text == body


async def test_nobody_there_is_an_error_at_once(refused_port: int) -> None:
    async with Pool() as pool:
        with pytest.raises(ConnectError) as found:
            await pool.ask(f"http://127.0.0.1:{refused_port}", b"GET /", b"")
        assert not isinstance(found.value, ConnectTimeoutError)


async def test_a_connection_that_is_never_made_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(pools, "CONNECT_SECONDS", 0.0)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    with pytest.raises(ConnectTimeoutError):
        await dial(read_origin("http://127.0.0.1:1"), lambda: Connection(lambda _: None, lambda _: None))
