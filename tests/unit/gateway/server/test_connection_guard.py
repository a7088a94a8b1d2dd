"""Raw connections: no client exceeds its limits, and no bytes are parsed in two ways."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st
from operator_support.virtual_time import run
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from plimsoll_gateway.server.connection_guard import (
    HEAD_SECONDS,
    LINGER_SECONDS,
    MOST_IDLE_BYTES,
    SLICE,
    ConnectionGuard,
)
from plimsoll_gateway.server.stall_watch import STALL_SECONDS

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

BODY = b'{"model": "m"}'


LAST = b"connection: close"
TOO_MUCH = MOST_IDLE_BYTES + SLICE


def request(*fields: bytes, body: bytes = BODY, first: bytes = b"POST /v1/completions HTTP/1.1") -> bytes:
    return b"\r\n".join([first, b"host: x", *fields, b"content-length: %d" % len(body)]) + b"\r\n\r\n" + body


async def talk(world: World, *pieces: bytes) -> bytes:
    """Return all bytes received until the connection closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(world.url.rpartition(":")[2]))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


async def test_a_head_that_goes_on_for_too_long_is_refused(
    world: World, ok: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "plimsoll_gateway.server.connection_guard")
    upstream = await world.model(ok)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(world.url.rpartition(":")[2]))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + (b"x-filler: " + b"y" * 1000 + b"\r\n") * 70)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert error["code"] == "headers_too_large"
    assert "refused a connection: 431 headers_too_large: " in caplog.text
    assert "65536 bytes in all" in error["message"]
    assert upstream.requests == []


async def never(_scope: object, _receive: object, _send: object) -> None:
    await asyncio.Event().wait()


async def reads_nothing_for_a_while(guard: ConnectionGuard, wire: Wire) -> None:
    wire.waiting = 1000
    guard.pause_writing()
    await asyncio.sleep(STALL_SECONDS - 1)
    wire.waiting = 999  # a slow reader
    await asyncio.sleep(2)
    assert not wire.is_aborted()
    await asyncio.sleep(STALL_SECONDS)


async def reads_on(guard: ConnectionGuard, wire: Wire) -> None:
    wire.waiting = 1000
    guard.pause_writing()
    guard.resume_writing()
    await asyncio.sleep(2 * STALL_SECONDS)


@pytest.mark.parametrize(("client", "cut_off"), [(reads_nothing_for_a_while, True), (reads_on, False)])
def test_a_client_that_reads_nothing_is_cut_off(
    client: Callable[[ConnectionGuard, Wire], Awaitable[None]], cut_off: bool
) -> None:
    async def story() -> None:
        guard, wire = serving(never)
        guard.data_received(request())
        await client(guard, wire)
        assert wire.is_aborted() is cut_off
        guard.connection_lost(None)

    run(story())


async def test_an_idle_client_whose_place_is_needed_is_cut_off() -> None:
    guard, wire, _ = served()
    wire.waiting = 10
    guard.give_way()
    assert wire.is_aborted()
    guard.connection_lost(None)


def test_a_client_that_does_not_read_the_end_of_its_last_answer_is_cut_off() -> None:
    async def story() -> None:
        guard, wire, _ = served()
        wire.waiting = 1000
        guard.data_received(request(LAST))
        await answered(guard)
        assert (wire.is_closing(), wire.is_aborted()) == (True, False)
        guard.resume_writing()
        await asyncio.sleep(STALL_SECONDS + 1)
        assert wire.is_aborted()
        guard.connection_lost(None)

    run(story())


async def test_nothing_after_a_broken_request_is_answered(world: World, ok: Behaviour) -> None:
    upstream = await world.model(ok)
    answer = await talk(world, b"nonsense\r\n\r\n" + request())
    assert answer.count(b"HTTP/1.1 ") == 1
    assert upstream.requests == []


async def test_requests_that_come_together_are_answered_in_order(world: World, ok: Behaviour) -> None:
    await world.model(ok)
    answer = await talk(
        world, request(b"x-request-id: 1") + request(b"x-request-id: 2") + request(LAST, b"x-request-id: 3")
    )
    found = [answer.index(b"x-request-id: %d" % number) for number in (1, 2, 3)]
    assert found == sorted(found)
    assert answer.count(b"HTTP/1.1 200 ") == 3


async def test_the_body_of_an_offer_to_upgrade_may_come_late() -> None:
    """The parser considers such a request complete after its head."""
    bodies: list[bytes] = []

    async def app(_scope: object, receive: Callable[[], Awaitable[dict[str, Any]]], _send: object) -> None:
        more = True
        while more:
            message = await receive()
            bodies.append(message.get("body", b""))
            more = message.get("more_body", False)

    guard, _ = serving(app)
    head, _, body = request(b"connection: Upgrade", b"upgrade: h2c").partition(b"\r\n\r\n")
    guard.data_received(head + b"\r\n\r\n")
    for byte in body:
        await asyncio.sleep(0)
        guard.data_received(bytes([byte]))
    await answered(guard)
    guard.connection_lost(None)
    assert b"".join(bodies) == body


class Wire(asyncio.Transport):
    """Records the bytes written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = self.aborted = False
        self.paused = self.half_closed = False
        self.waiting = 0  # bytes that the client has not read

    def text(self) -> bytes:
        return b"".join(self.sent)

    def write_eof(self) -> None:
        self.half_closed = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def is_closing(self) -> bool:
        return self.closed

    def is_aborted(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_reading(self) -> bool:
        return not (self.paused or self.closed)


def serving(app: object, kind: type[ConnectionGuard] = ConnectionGuard) -> tuple[ConnectionGuard, Wire]:
    """Return a connection to this application."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", timeout_keep_alive=75)  # type: ignore[arg-type]
    config.load()
    guard, wire = kind(config, ServerState(), {}), Wire()
    guard.connection_made(wire)
    return guard, wire


async def answered(guard: ConnectionGuard) -> None:
    """Let all requests run to their end."""
    while guard._http.tasks:
        await asyncio.gather(*guard._http.tasks)
        await asyncio.sleep(0)


def served(
    kind: type[ConnectionGuard] = ConnectionGuard, *, reads: bool = False
) -> tuple[ConnectionGuard, Wire, list[str]]:
    """Return a connection to an application that sends empty responses, and the requested paths. `reads`: it reads
    bodies, too.
    """
    asked: list[str] = []

    async def app(scope: dict[str, Any], receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        asked.append(scope["path"])
        while reads and (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return *serving(app, kind), asked


@pytest.mark.parametrize(
    "bad",
    [
        b"nonsense\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n12345",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: +5\r\n\r\n12345",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: x, chunked, y\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nbad name: 1\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nname: a\x00b\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n folded: 1\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\nhost: x\ncontent-length: 2\n\n{}",
    ],
)
async def test_what_is_no_http_is_a_400_and_reaches_no_replica(world: World, ok: Behaviour, bad: bytes) -> None:
    upstream = await world.model(ok)
    answer = await talk(world, bad)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in answer
    assert upstream.requests == []


@pytest.mark.parametrize("fields", [(b"x-filler: " + b"y" * 1000 + b"\r\n") * 70, b"x: " + b"y" * TOO_MUCH])
async def test_a_head_that_comes_in_one_read_may_not_have_more(fields: bytes) -> None:
    for target, more in ((b"/", fields), (b"/" + b"x" * TOO_MUCH, b"")):
        guard, wire, asked = served()
        guard.data_received(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\n" + more + b"\r\n")
        await asyncio.sleep(0)
        assert wire.text().startswith(b"HTTP/1.1 431 ")
        assert wire.is_closing()
        assert asked == []
        guard.connection_lost(None)


async def test_a_head_may_have_as_much_and_nothing_of_it_is_kept_behind_its_answer() -> None:
    guard, wire, asked = served()
    for count in (1, 2):
        guard.data_received(request(b"x-large: " + b"y" * 50_000))
        await answered(guard)
        assert (len(asked), wire.text().count(b"HTTP/1.1 200 ")) == (count, count)
        http = guard._http
        held = [http.url, http.headers, http.scope, http.cycle.scope, http.cycle.body]
        assert not any(held), held
    guard.connection_lost(None)


async def test_a_trailer_without_end_ends_the_connection() -> None:
    guard, wire, _ = served()
    guard.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(3):
        guard.data_received(b"%x\r\n" % SLICE + b"x" * SLICE + b"\r\n")
    guard.data_received(b"0\r\nx-late: ")
    guard.data_received(b"y" * (MOST_IDLE_BYTES // 2))
    assert not wire.is_closing()
    guard.data_received(b"y" * MOST_IDLE_BYTES)
    assert wire.is_aborted()
    guard.connection_lost(None)
    await answered(guard)


async def test_requests_sent_ahead_are_read_as_they_are_answered(world: World) -> None:
    """While the first request waits, the memory for the others is limited; all are answered."""
    arrived: asyncio.Queue[Request] = asyncio.Queue()
    await world.model(arrived.put)
    ahead = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"
    gc.collect()  # leftovers of earlier tests
    last = b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    talking = asyncio.create_task(talk(world, request() + ahead * 5000 + last))
    first = await arrived.get()
    await asyncio.sleep(0.1)
    made = sum(type(each) is RequestResponseCycle for each in gc.get_objects())
    assert made <= 3 * SLICE // len(ahead)
    first.respond(200, "done")
    answer = await talking
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 ") == 5002


@example(cuts=[3 * len(request(body=b"")) + 2 * 2], count=3, size=2)  # a body arrives separately
@given(cuts=st.lists(st.integers(1, 3 * SLICE), max_size=8), count=st.integers(1, 4), size=st.integers(0, 80_000))
def test_requests_are_the_same_however_they_are_cut(cuts: list[int], count: int, size: int) -> None:
    async def story() -> None:
        bodies: list[bytes] = []

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            body, more = b"", True
            while more:
                message = await receive()
                body, more = body + message["body"], message["more_body"]
            bodies.append(body)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

        guard, wire = serving(app)
        sent = b"".join(request(body=bytes([48 + number]) * size) for number in range(count))
        for cut in [*cuts, len(sent)]:
            piece, sent = sent[:cut], sent[cut:]
            guard.data_received(piece)
            await answered(guard) if not sent else await asyncio.sleep(0)
        for _ in range(200):
            await asyncio.sleep(0)
        assert bodies == [bytes([48 + number]) * size for number in range(count)]
        assert wire.text().count(b"HTTP/1.1 200 ") == count
        guard.connection_lost(None)

    run(story())


@pytest.mark.parametrize(("sent", "closed"), [(b"", False), (b"\r\n", False), (b"GE", True)])
def test_an_empty_line_behind_a_request_begins_no_head(sent: bytes, closed: bool) -> None:
    async def story() -> None:
        guard, wire, _ = served()
        guard.data_received(request())
        await answered(guard)
        guard.data_received(sent)
        await asyncio.sleep(HEAD_SECONDS + 1)
        assert wire.is_closing() is closed
        assert (b"HTTP/1.1 408 " in wire.text()) is closed
        guard.connection_lost(None)

    run(story())


@pytest.mark.parametrize("together", [False, True])
async def test_an_offer_to_upgrade_is_not_taken_and_costs_nothing(world: World, ok: Behaviour, together: bool) -> None:
    """Some HTTP/2 clients send it with each first request, and continue with HTTP/1.1 on the same connection."""
    upstream = await world.model(ok)
    offer = (b"connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"http2-settings: AAMAAABk")
    head, _, body = request(*offer).partition(b"\r\n\r\n")
    pieces = [head + b"\r\n\r\n", body, request(LAST)]
    answer = await talk(world, *([b"".join(pieces)] if together else pieces))
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert [one.body for one in upstream.requests] == [BODY] * 2


@pytest.mark.parametrize("size", [1, SLICE, MOST_IDLE_BYTES, 8 * MOST_IDLE_BYTES])
def test_an_answer_before_the_end_of_its_request_ends_the_connection_and_is_heard(size: int) -> None:
    async def story() -> None:
        guard, wire, asked = served()
        head, _, _ = request(body=b"x" * (size + 1)).partition(b"\r\n\r\n")
        guard.data_received(head + b"\r\n\r\n")
        await answered(guard)
        assert wire.text().startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in wire.text()
        assert (wire.half_closed, wire.is_closing()) == (True, False), "what comes is read, or it would be reset"
        said = wire.text()
        guard.data_received(b"x" * size)
        guard.data_received(b"GET /evil HTTP/1.1\r\nhost: x\r\n\r\n")
        await answered(guard)
        assert (asked, wire.text()) == (["/v1/completions"], said)
        await asyncio.sleep(LINGER_SECONDS + 1)
        assert wire.is_closing()
        guard.connection_lost(None)

    run(story())


@given(place=st.integers(1, 200), cut=st.integers(1, 200))
def test_a_head_that_begins_behind_a_chunked_body_is_not_lost(place: int, cut: int) -> None:
    """The parser has part of it when the previous response ends."""

    async def story() -> None:
        guard, wire, asked = served()
        body = b"e\r\n" + BODY + b"\r\n0\r\n\r\n"
        first = b"POST /first HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        second = b"GET /second HTTP/1.1\r\nhost: x\r\nx-some: thing\r\n\r\n"
        guard.data_received(first)
        text = body + second
        for begin, end in pairwise(sorted({0, place % len(text), (place + cut) % len(text), len(text)})):
            guard.data_received(text[begin:end])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await answered(guard)
        if b"connection: close" not in wire.text():
            assert asked == ["/first", "/second"]
            assert wire.text().count(b"HTTP/1.1 200 ") == wire.text().count(b"HTTP/1.1 ") == 2
        guard.connection_lost(None)

    run(story())


@given(place=st.integers(1, 300), body_apart=st.booleans())
def test_an_offer_to_upgrade_hides_no_request_in_its_body(place: int, body_apart: bool) -> None:
    async def story() -> None:
        guard, _, asked = served(reads=True)
        evil = b"GET /evil HTTP/1.1\r\nhost: x\r\n\r\n"
        head, _, body = request(b"connection: Upgrade", b"upgrade: h2c", body=evil).partition(b"\r\n\r\n")
        text = head + b"\r\n\r\n"
        pieces = [text[: place % len(text)], text[place % len(text) :]]
        for piece in [*pieces, body] if body_apart else [pieces[0], pieces[1] + body]:
            guard.data_received(piece)
            await asyncio.sleep(0)
        guard.data_received(request(LAST, first=b"POST /last HTTP/1.1"))
        await answered(guard)
        assert asked == ["/v1/completions", "/last"]
        guard.connection_lost(None)

    run(story())


async def test_an_offer_to_upgrade_behind_a_body_is_the_last_request() -> None:
    guard, wire, asked = served(reads=True)
    chunked = b"POST /first HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    guard.data_received(chunked)
    evil = b"GET /evil HTTP/1.1\r\nhost: x\r\n\r\n"
    offer = request(b"connection: Upgrade", b"upgrade: h2c", body=evil)
    guard.data_received(b"e\r\n" + BODY + b"\r\n0\r\n\r\n" + offer)
    await answered(guard)
    guard.data_received(evil)
    await answered(guard)
    assert asked == ["/first", "/v1/completions"]
    assert wire.is_closing()
    guard.connection_lost(None)


async def test_a_client_that_sends_ahead_and_goes_is_noticed(world: World) -> None:
    arrived = asyncio.Event()

    async def hang(_: Request) -> None:
        arrived.set()

    upstream = await world.model(hang)
    _, writer = await asyncio.open_connection("127.0.0.1", int(world.url.rpartition(":")[2]))
    writer.write(request())
    await asyncio.wait_for(arrived.wait(), 30)
    writer.write(request())
    await asyncio.sleep(0.1)
    writer.transport.abort()
    await asyncio.wait_for(upstream.requests[0].hung_up.wait(), 30)


async def test_what_a_client_still_sends_is_read_behind_an_early_answer() -> None:
    """Also if uvicorn had stopped reading: otherwise the client would be reset, and could lose its response."""
    guard, wire, _ = served()
    guard.data_received(request(body=b"x" * (4 * MOST_IDLE_BYTES))[: 3 * MOST_IDLE_BYTES])
    assert not wire.is_reading()
    await answered(guard)
    await asyncio.sleep(0)
    assert (wire.half_closed, wire.is_reading()) == (True, True)
    guard.connection_lost(None)
