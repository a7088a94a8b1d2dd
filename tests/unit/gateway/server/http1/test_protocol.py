"""What the HTTP parser lets through, on raw connections: nothing that two readers could take for other requests."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from operator_support.virtual_time import run
from uvicorn.server import ServerState

from plimsoll_gateway.proxy.exchange import connection_of
from plimsoll_gateway.server.http1.exchange import Cycle
from plimsoll_gateway.server.http1.protocol import (
    MOST_AHEAD,
    MOST_AHEAD_BYTES,
    MOST_FIELDS,
    MOST_HEAD_BYTES,
    PatientProtocol,
)
from plimsoll_gateway.server.http1.task_pool import Workers
from plimsoll_gateway.server.http1.write_buffer import STALL_SECONDS

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

BODY = b'{"model": "m"}'


LAST = b"connection: close"


def request(*fields: bytes, body: bytes = BODY, first: bytes = b"POST /v1/completions HTTP/1.1") -> bytes:
    return b"\r\n".join([first, b"host: x", *fields, b"content-length: %d" % len(body)]) + b"\r\n\r\n" + body


async def talk(world: World, *pieces: bytes) -> bytes:
    """All that is answered until the connection closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(world.url.rpartition(":")[2]))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


async def test_a_head_that_goes_on_for_too_long_is_refused(world: World, ok: Behaviour) -> None:
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
    assert "200 headers, 65536 bytes in all" in error["message"]
    assert upstream.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        b"a:b\r\n" * MOST_FIELDS,
        (b"x-filler: " + b"y" * 1000 + b"\r\n") * 70,
        b"x-filler: " + b"y" * MOST_HEAD_BYTES + b"\r\n",
    ],
)
async def test_a_head_that_comes_whole_may_not_have_more(fields: bytes) -> None:
    """However it comes: a single read may have it all."""
    for target, more in ((b"/", fields), (b"/" + b"x" * MOST_HEAD_BYTES, b"")):
        protocol, wire, asked = served()
        protocol.data_received(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\n" + more + b"\r\n")
        await asyncio.sleep(0)
        assert wire.text().startswith(b"HTTP/1.1 431 ")
        assert wire.is_closing()
        assert asked == []
        protocol.connection_lost(None)


async def test_a_head_may_have_as_much() -> None:
    protocol, wire, asked = served()
    protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a:b\r\n" * (MOST_FIELDS - 1) + b"\r\n")
    await asyncio.gather(*protocol.tasks)
    assert len(asked) == 1
    assert wire.text().startswith(b"HTTP/1.1 200 ")
    protocol.connection_lost(None)


async def test_an_idle_connection_holds_nothing_of_its_last_request() -> None:
    protocol, wire, _ = served()
    for count in (1, 2):
        protocol.data_received(request(b"x-large: " + b"y" * 50_000))
        await asyncio.gather(*protocol.tasks)
        assert wire.text().count(b"HTTP/1.1 200 ") == count
        held = [protocol.url, protocol.headers, protocol.scope, protocol.cycle.scope, protocol.cycle.body]
        assert not any(held), held
    protocol.connection_lost(None)


async def never(_scope: object, _receive: object, _send: object) -> None:
    await asyncio.Event().wait()


async def reads_nothing_for_a_while(protocol: PatientProtocol, wire: Wire) -> None:
    wire.waiting = 1000
    protocol.pause_writing()
    await asyncio.sleep(STALL_SECONDS - 1)
    wire.waiting = 999  # it is slow
    await asyncio.sleep(2)
    assert not wire.is_aborted()
    await asyncio.sleep(STALL_SECONDS)


async def reads_on(protocol: PatientProtocol, wire: Wire) -> None:
    wire.waiting = 1000
    protocol.pause_writing()
    protocol.resume_writing()
    await asyncio.sleep(2 * STALL_SECONDS)


@pytest.mark.parametrize(("client", "cut_off"), [(reads_nothing_for_a_while, True), (reads_on, False)])
def test_a_client_that_reads_nothing_is_cut_off(
    client: Callable[[PatientProtocol, Wire], Awaitable[None]], cut_off: bool
) -> None:
    async def story() -> None:
        protocol, wire = serving(never)
        protocol.data_received(request())
        await client(protocol, wire)
        assert wire.is_aborted() is cut_off
        protocol.connection_lost(None)

    run(story())


async def test_an_idle_client_whose_place_is_needed_is_cut_off() -> None:
    protocol, wire, _ = served()
    wire.waiting = 10
    protocol.give_way()
    assert wire.is_aborted()
    protocol.connection_lost(None)


def test_a_client_that_does_not_read_the_end_of_its_last_answer_is_cut_off() -> None:
    async def story() -> None:
        protocol, wire, _ = served()
        wire.waiting = 1000
        protocol.data_received(request(LAST))
        await asyncio.gather(*protocol.tasks)
        assert (wire.is_closing(), wire.is_aborted()) == (True, False)
        protocol.resume_writing()
        await asyncio.sleep(STALL_SECONDS + 1)
        assert wire.is_aborted()
        protocol.connection_lost(None)

    run(story())


@pytest.mark.parametrize(("sent", "cut_off"), [(b"", True), (b"\r\n", True), (b"\r\n" + request(), False)])
def test_a_client_that_asks_nothing_more_is_cut_off(sent: bytes, cut_off: bool) -> None:
    async def story() -> None:
        protocol, wire, asked = served()
        protocol.data_received(request())
        await asyncio.gather(*protocol.tasks)
        wire.waiting = 10
        for _ in range(9):
            if sent and not wire.is_aborted():
                protocol.data_received(sent)
            await asyncio.sleep(protocol.timeout_keep_alive / 3)
        assert (wire.is_aborted(), len(asked)) == (cut_off, 1 if cut_off else 10)
        protocol.connection_lost(None)

    run(story())


@pytest.mark.parametrize(
    "bad",
    [
        b"nonsense\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n12345",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: +5\r\n\r\n12345",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: x, chunked, y\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nbad name: 1\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nname: a\x00b\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n folded: 1\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\nhost: x\ncontent-length: 2\n\n{}",
    ],
)
async def test_what_is_no_http_is_a_400_in_openais_shape(world: World, ok: Behaviour, bad: bytes) -> None:
    upstream = await world.model(ok)
    answer = await talk(world, bad)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in head
    assert json.loads(body)["error"]["code"] == "invalid_request"
    assert upstream.requests == []


async def test_nothing_after_a_broken_request_is_answered(world: World, ok: Behaviour) -> None:
    upstream = await world.model(ok)
    answer = await talk(world, b"nonsense\r\n\r\n" + request())
    assert answer.count(b"HTTP/1.1 ") == 1
    assert upstream.requests == []


async def test_a_broken_request_behind_a_good_one_leaves_its_answer_whole(world: World, ok: Behaviour) -> None:
    await world.model(ok)
    answer = await talk(world, request() + b"nonsense\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.endswith(b'{"ok": true}')


async def test_requests_that_come_together_are_answered_in_order(world: World, ok: Behaviour) -> None:
    await world.model(ok)
    answer = await talk(
        world, request(b"x-request-id: 1") + request(b"x-request-id: 2") + request(LAST, b"x-request-id: 3")
    )
    found = [answer.index(b"x-request-id: %d" % number) for number in (1, 2, 3)]
    assert found == sorted(found)
    assert answer.count(b"HTTP/1.1 200 ") == 3


async def test_many_requests_at_once_are_not_kept(world: World) -> None:
    """While the first one waits for its answer, what is made of the others is bounded; those are answered, no more."""
    arrived: asyncio.Queue[Request] = asyncio.Queue()
    await world.model(arrived.put)
    gc.collect()  # what tests before this one have left
    talking = asyncio.create_task(talk(world, request() + b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n" * 5000))
    first = await arrived.get()
    cycles = [made for made in gc.get_objects() if type(made) is Cycle]
    assert len(cycles) <= MOST_AHEAD + 2
    del cycles
    first.respond(200, "done")
    answer = await talking
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 ") == MOST_AHEAD + 1
    assert b"connection: close" in answer.rpartition(b"HTTP/1.1 ")[2]


async def test_the_bodies_of_requests_that_are_sent_ahead_are_not_kept_without_bound() -> None:
    """Whoever answers the first one may ask for more of it, or for news of its client, as often as it likes."""
    end = asyncio.Event()
    bodies: list[bytes] = []

    async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        more = True
        while more:
            message = await receive()
            bodies.append(message["body"])
            more = message["more_body"]
        caller = connection_of(scope)
        assert caller is not None
        caller.tell(lambda: None)
        await end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    protocol, wire = serving(app)
    half = MOST_AHEAD_BYTES // 2
    second = request(body=b"x" * (6 * half))
    head = len(second) - 6 * half
    protocol.data_received(request() + second[: head + half])
    for _ in range(5):
        await asyncio.sleep(0)
    assert not wire.is_paused(), "the end of the connection is still to be heard"
    protocol.data_received(second[head + half : head + 3 * half])
    protocol.cycle.flow.resume_reading()
    assert wire.is_paused()
    end.set()
    first = next(iter(protocol.tasks))
    await first
    assert not wire.is_paused()
    for at in range(head + 3 * half, len(second), half):
        for _ in range(3):
            await asyncio.sleep(0)
        protocol.data_received(second[at : at + half])
        assert not wire.is_paused()
    await asyncio.gather(*protocol.tasks)
    assert b"".join(bodies) == BODY + b"x" * (6 * half)
    assert wire.text().count(b"HTTP/1.1 200 ") == 2
    protocol.connection_lost(None)


async def test_a_trailer_changes_no_header(world: World, ok: Behaviour) -> None:
    """Headers that come after the body would be heard by who reads them late, and not by who reads them early."""
    upstream = await world.model(ok)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    answer = await talk(world, head + b"e\r\n" + BODY + b"\r\n0\r\nx-late: 1\r\nauthorization: Bearer x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert not {"x-late", "authorization"} & set(upstream.requests[0].headers)


async def test_a_trailer_without_end_ends_the_connection() -> None:
    protocol, wire, _ = served()
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(3):
        protocol.data_received(b"%x\r\n" % MOST_HEAD_BYTES + b"x" * MOST_HEAD_BYTES + b"\r\n")
    protocol.data_received(b"0\r\nx-late: ")
    protocol.data_received(b"y" * (MOST_HEAD_BYTES // 2))
    assert not wire.is_closing()
    protocol.data_received(b"y" * MOST_HEAD_BYTES)
    assert wire.is_closing()
    protocol.connection_lost(None)
    await asyncio.gather(*protocol.tasks)


async def test_an_offer_to_upgrade_is_not_taken_and_costs_nothing(world: World, ok: Behaviour) -> None:
    """Some clients of HTTP/2 make it with every first request, and go on with HTTP/1.1 on the same connection."""
    upstream = await world.model(ok)
    offer = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABk")
    chunked = b"\r\n".join([b"POST /v1/completions HTTP/1.1", b"host: x", *offer, b"transfer-encoding: chunked"])
    asked = [request(*offer), chunked + b"\r\n\r\ne\r\n" + BODY + b"\r\n0\r\n\r\n"]
    asked += [b"GET /live HTTP/1.1\r\nhost: x\r\n" + b"\r\n".join(offer) + b"\r\n\r\n", request(LAST)]
    for pieces in (asked, [b"".join(asked)], [bytes([byte]) for byte in b"".join(asked)]):
        answer = await talk(world, *pieces)
        assert answer.count(b"HTTP/1.1 200 ") == 4
    assert [one.body for one in upstream.requests] == [BODY] * 9


async def test_the_body_of_an_offer_to_upgrade_may_come_late() -> None:
    """The parser takes such a request for complete when its head is."""
    bodies: list[bytes] = []

    async def app(_scope: object, receive: Callable[[], Awaitable[dict[str, Any]]], _send: object) -> None:
        more = True
        while more:
            message = await receive()
            bodies.append(message.get("body", b""))
            more = message.get("more_body", False)

    protocol, _ = serving(app)
    head, _, body = request(b"connection: Upgrade", b"upgrade: h2c").partition(b"\r\n\r\n")
    protocol.data_received(head + b"\r\n\r\n")
    for byte in body:
        await asyncio.sleep(0)
        protocol.data_received(bytes([byte]))
    await asyncio.gather(*protocol.tasks)
    protocol.connection_lost(None)
    assert b"".join(bodies) == body


class Wire(asyncio.Transport):
    """Keeps what is written; nothing goes anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = self.aborted = False
        self.paused = False
        self.waiting = 0  # bytes that the client has not taken

    def text(self) -> bytes:
        return b"".join(self.sent)

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

    def is_paused(self) -> bool:
        return self.paused


def serving(app: object, kind: type[PatientProtocol] = PatientProtocol) -> tuple[PatientProtocol, Wire]:
    """A connection to that application."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")  # type: ignore[arg-type]
    config.load()
    protocol, wire = kind(config, ServerState(), {}), Wire()
    protocol.connection_made(wire)
    return protocol, wire


def served(kind: type[PatientProtocol] = PatientProtocol) -> tuple[PatientProtocol, Wire, list[str]]:
    """A connection to one that answers all with nothing, and the paths that it was asked for."""
    asked: list[str] = []

    async def app(scope: dict[str, Any], _receive: object, send: Callable[[Any], Awaitable[None]]) -> None:
        asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return *serving(app, kind), asked


def prompt() -> type[PatientProtocol]:
    """What the gateway is served by: tasks that are there already answer."""
    return type("PromptProtocol", (PatientProtocol,), {"workers": Workers()})


async def test_a_request_is_answered_before_anything_else_is_read() -> None:
    protocol, wire, asked = served(prompt())
    protocol.data_received(b"GET /first HTTP/1.1\r\nhost: x\r\n\r\n")
    await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
    assert asked == ["/first"]
    read = asyncio.get_running_loop().create_future()

    def second() -> None:
        """As the event loop does, outside of a task."""
        protocol.data_received(b"GET /second HTTP/1.1\r\nhost: x\r\n\r\nGET /third HTTP/1.1\r\nhost: x\r\n\r\n")
        read.set_result((list(asked), wire.text().count(b"HTTP/1.1 200 ")))

    asyncio.get_running_loop().call_soon(second)
    assert await read == (["/first", "/second"], 2)
    await asyncio.sleep(0)
    assert asked == ["/first", "/second", "/third"]  # behind the answer to the one before
    assert protocol.tasks == set()
    protocol.connection_lost(None)


async def test_nothing_is_begun_behind_a_refusal() -> None:
    protocol, wire, asked = served(prompt())
    protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * MOST_HEAD_BYTES + b"\r\n\r\n")
    await asyncio.sleep(0)
    assert (asked, protocol.tasks) == ([], set())
    assert wire.is_closing()
    protocol.connection_lost(None)


NAMED = st.sampled_from([b"host", b"Host", b"HOST"])


@given(hosts=st.lists(NAMED, max_size=4), others=st.integers(0, 3), version=st.sampled_from([b"1.0", b"1.1"]))
def test_a_head_has_one_host(hosts: list[bytes], others: int, version: bytes) -> None:
    """However it is written, among whatever other fields that come twice. HTTP/1.0 may have none."""

    async def story() -> None:
        protocol, wire, asked = served()
        fields = [b"x-same: 1"] * others + [name + b": a" for name in hosts]
        protocol.data_received(b"\r\n".join([b"GET / HTTP/" + version, *fields, b"", b""]))
        await asyncio.gather(*protocol.tasks)
        if len(hosts) == 1 or (not hosts and version == b"1.0"):
            assert (asked, wire.text()[:13]) == (["/"], b"HTTP/1.1 200 ")
        else:
            assert (asked, wire.text()[:13]) == ([], b"HTTP/1.1 400 ")
            assert b"has %d Host headers" % len(hosts) in wire.text()
            assert wire.is_closing()
        protocol.connection_lost(None)

    run(story())
