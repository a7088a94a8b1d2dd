"""Responses arrive complete or report that they are not, and each kind of failure has its error."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_gateway.client import pool as pools
from plimsoll_gateway.client.errors import (
    BrokenResponseError,
    ConnectError,
    ConnectTimeoutError,
    InvalidResponseError,
    ResetError,
    UpstreamError,
)
from plimsoll_gateway.client.pool import MOST_LINE_BYTES, Pool, probed_socket
from plimsoll_gateway.client.response import Response

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

Replica = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(replica: Replica) -> AsyncIterator[str]:
    """Serve each connection with `replica`, then close it; yields the URL."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await replica(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def saying(text: bytes, cuts: tuple[int, ...] = ()) -> Replica:
    """Return a replica that sends `text` in chunks."""

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
        for begin, end in pairwise(places):
            writer.write(text[begin:end])
            await writer.drain()
            await asyncio.sleep(0)

    return replica


async def whole(response: Response) -> bytes:
    text = b""
    while piece := await response.read():
        text += piece
    return text


async def answer(pool: Pool, url: str) -> bytes:
    """Return a complete response. Raises UpstreamError."""
    response = await pool.ask(url, "GET", "/")
    try:
        text = await whole(response)
        assert response.is_whole
        return text
    except UpstreamError:
        assert not response.is_whole
        raise
    finally:
        response.close()


async def test_a_path_of_the_url_comes_before_that_of_the_request(world: World, ok: Behaviour) -> None:
    upstream = await world.upstream(ok)
    async with Pool() as pool:
        url, fields = f"http://127.0.0.1:{upstream.port}/base/", [(b"content-length", b"2"), (b"x-a", "ü".encode())]
        response = await pool.ask(url, "POST", "/v1/x?y=%2F", fields, memoryview(b"{}"))
        assert await response.read() == b'{"ok": true}'
    [asked] = upstream.requests
    assert asked.line == "POST /base/v1/x?y=%2F HTTP/1.1"
    own = {"host": f"127.0.0.1:{upstream.port}", "content-length": "2", "x-a": "ü".encode().decode("latin-1")}
    assert asked.headers == own
    assert asked.body == b"{}"


async def test_requests_one_after_the_other_share_a_connection(world: World, ok: Behaviour) -> None:
    upstream = await world.upstream(ok)
    async with Pool() as pool:
        for _ in range(3):
            response = await pool.ask(f"http://127.0.0.1:{upstream.port}", "GET", "/")
            assert await response.read() == b'{"ok": true}'
            response.close()
    assert len({request.writer for request in upstream.requests}) == 1


async def test_a_large_body_and_its_answer_pass_a_real_socket(world: World) -> None:
    async def echo(request: Request) -> None:
        request.respond(200, request.body.decode())

    upstream = await world.upstream(echo)
    body = b"0123456789" * 300_000
    async with Pool() as pool:
        length = [(b"content-length", b"%d" % len(body))]
        response = await pool.ask(f"http://127.0.0.1:{upstream.port}", "POST", "/", length, memoryview(body))
        assert await whole(response) == body


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nX-Name: a\r\ncontent-length: 11\r\n\r\nhello world"
EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + SIZED
OPEN = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello world"


@settings(max_examples=40, deadline=None)
@given(text=st.sampled_from([CHUNKED, SIZED, EARLY, OPEN]), cuts=st.tuples(*[st.integers(0, 200)] * 3))
def test_an_answer_is_the_same_however_it_is_cut(text: bytes, cuts: tuple[int, ...]) -> None:
    async def story() -> None:
        async with serving(saying(text, cuts)) as url, Pool() as pool:
            assert await answer(pool, url) == b"hello world"

    asyncio.run(story())


@settings(max_examples=40, deadline=None)
@given(text=st.sampled_from([CHUNKED, SIZED]), place=st.integers(1, 200))
def test_an_answer_that_is_cut_off_is_never_whole(text: bytes, place: int) -> None:
    async def story() -> None:
        async with serving(saying(text[: place % len(text)])) as url, Pool() as pool:
            with pytest.raises(UpstreamError):
                await answer(pool, url)

    asyncio.run(story())


@pytest.mark.parametrize(
    "text",
    [
        b"what?\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (MOST_LINE_BYTES + 1) + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad name: 1\r\ncontent-length: 0\r\n\r\n",
    ],
)
async def test_what_is_no_answer_is_told(text: bytes) -> None:
    async with serving(saying(text)) as url, Pool() as pool:
        with pytest.raises(InvalidResponseError):
            await pool.ask(url, "GET", "/")


async def test_a_replica_that_goes_away_before_its_answer_is_told() -> None:
    async with serving(saying(b"")) as url, Pool() as pool:
        with pytest.raises(ResetError):
            await pool.ask(url, "POST", "/", [(b"content-length", b"2")], memoryview(b"{}"))


async def test_garbage_within_a_body_breaks_it() -> None:
    async with serving(saying(CHUNKED[:-13] + b"garbage\r\n")) as url, Pool() as pool:
        with pytest.raises(UpstreamError):
            await answer(pool, url)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("garbage", [b"zz\r\n", b"0\r\nx-late: " + b"y" * 40_000])
async def test_an_answer_that_becomes_nonsense_later_breaks(garbage: bytes, late: bool) -> None:
    goes_on = asyncio.Event()

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED.removesuffix(b"0\r\n\r\n"))
        await goes_on.wait()
        writer.write(garbage)
        await reader.read()

    async with serving(replica) as url, Pool() as pool:
        response = await pool.ask(url, "GET", "/")
        assert await response.read()
        goes_on.set()
        if late:
            await asyncio.sleep(0.1)
        with pytest.raises(BrokenResponseError):
            async with asyncio.timeout(30):
                await whole(response)
        response.close()


async def test_an_answer_without_a_length_that_is_reset_is_not_whole() -> None:
    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OPEN)
        await writer.drain()
        await asyncio.sleep(0.1)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async with serving(replica) as url, Pool() as pool:
        response = await pool.ask(url, "GET", "/")
        with pytest.raises(BrokenResponseError):
            await whole(response)
        response.close()


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
async def test_what_changes_something_is_asked_once(method: str) -> None:
    asked = 0

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SIZED)
        await reader.readuntil(b"\r\n\r\n")
        asked += 1

    async with serving(replica) as url, Pool() as pool:
        assert await answer(pool, url) == b"hello world"
        with pytest.raises(ResetError):
            await pool.ask(url, method, "/")
        assert asked == 1


async def test_nobody_there_is_an_error_at_once(refused_port: int) -> None:
    async with Pool() as pool:
        with pytest.raises(ConnectError) as found:
            await pool.ask(f"http://127.0.0.1:{refused_port}", "GET", "/")
        assert not isinstance(found.value, ConnectTimeoutError)


@pytest.mark.parametrize("url", ["http://", "http://a:b", "http://a:99999", "http://[::1", "http://a..b", "ftp://a"])
async def test_a_url_that_names_no_host_is_an_error(url: str) -> None:
    async with Pool() as pool:
        with pytest.raises(ConnectError):
            await pool.ask(url, "GET", "/")


async def test_a_connection_that_is_never_made_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a full backlog, Linux does not respond."""
    monkeypatch.setattr(pools, "CONNECT_SECONDS", 0.2)
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waits.connect(full.getsockname())
        async with Pool() as pool:
            with pytest.raises(ConnectTimeoutError, match=r"no connection within 0\.2 s"):
                await pool.ask(f"http://127.0.0.1:{full.getsockname()[1]}", "GET", "/")


async def test_an_answer_that_nobody_reads_stops_its_replica() -> None:
    written = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
            written += 65536

    async with serving(endless) as url, Pool() as pool:
        response = await pool.ask(url, "GET", "/")
        before = -1
        while before < written or not written:
            before = written
            await asyncio.sleep(0.2)
        assert written < 32 << 20, "not more than socket buffers hold"
        assert await response.read()
        response.close()


async def test_closing_an_answer_ends_its_request_and_no_other() -> None:
    ended = asyncio.Event()

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        if b"/other" in head:
            await ended.wait()
            writer.write(b"0\r\n\r\n")
            return
        await reader.read()
        ended.set()

    async with serving(replica) as url, Pool() as pool:
        response, other = await pool.ask(url, "GET", "/"), await pool.ask(url, "GET", "/other")
        response.close()
        await asyncio.wait_for(ended.wait(), 30)
        assert await whole(other) == b"x"


async def test_a_request_that_is_given_up_ends_its_connection() -> None:
    arrived, ended = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await reader.read()
        ended.set()

    async with serving(silent) as url, Pool() as pool:
        asking = asyncio.create_task(pool.ask(url, "GET", "/"))
        await arrived.wait()
        asking.cancel()
        await asyncio.wait_for(ended.wait(), 30)


async def test_a_replica_that_takes_no_more_of_a_large_request_is_heard() -> None:
    async def full(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Full\r\ncontent-length: 4\r\n\r\nfull")
        await reader.read(100)
        await asyncio.sleep(0.5)

    body = memoryview(b"x" * 20_000_000)
    async with serving(full) as url, Pool() as pool:
        response = await pool.ask(url, "POST", "/", [(b"content-length", b"%d" % len(body))], body)
        assert (response.status, await whole(response)) == (413, b"full")
        response.close()


async def test_what_a_body_raises_is_raised() -> None:
    class Stop(Exception):
        pass

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"begin"
        raise Stop

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as url, Pool() as pool:
        with pytest.raises(Stop):
            await pool.ask(url, "POST", "/", [(b"content-length", b"99")], pieces())


async def test_what_was_peeked_at_is_still_read() -> None:
    async with serving(saying(SIZED)) as url, Pool() as pool:
        response = await pool.ask(url, "GET", "/")
        assert response.header(b"x-name") == b"a"
        assert await response.peek(3) == b"hello world"
        assert await whole(response) == b"hello world"
    async with serving(saying(SIZED[:-1], (len(SIZED) - 4,))) as url, Pool() as pool:
        response = await pool.ask(url, "GET", "/")
        assert b"hello worl".startswith(await response.peek(100)), "the bytes before the break"
        with pytest.raises(BrokenResponseError):
            await whole(response)
        response.close()


def test_connections_to_replicas_are_probed() -> None:
    with probed_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == pools.PROBE_AFTER_SECONDS
