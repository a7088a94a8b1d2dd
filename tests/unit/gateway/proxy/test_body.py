"""Request bodies: how much is held and for how long, and the refusals beyond that."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from plimsoll_gateway.admission.body_memory import SMALL_BYTES, BodyMemory
from plimsoll_gateway.admission.limits import BODY_BYTES, MODEL_PATHS, Limits
from plimsoll_gateway.app import Gateway
from plimsoll_gateway.client.pool import Pool
from plimsoll_gateway.discovery.routing_table import TableStore, build_table
from plimsoll_gateway.errors.refusals import Refusal
from plimsoll_gateway.proxy import exchange
from plimsoll_gateway.proxy.body import DISCARD_BYTES, Body, Message, Receive, read_body
from plimsoll_gateway.routing.pick import Picker
from plimsoll_gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

PIECE = 64 << 10
MOST = 1 << 20
"""As in the fixture `world`: one body. All bodies together may have four times as much."""
CHAT = "/v1/chat/completions"


def new_memory(most: int = 4 * MOST) -> BodyMemory:
    return BodyMemory(most, Metrics(TableStore()))


def endless(memory: BodyMemory, held: list[int]) -> Receive:
    """A client that never stops; records how much was held at each chunk."""

    async def receive() -> Message:
        held.append(memory.held)
        return {"type": "http.request", "body": bytes(PIECE), "more_body": True}

    return receive


async def test_the_limit_holds_while_a_body_streams() -> None:
    """A 413 alone proves nothing: it could follow after the whole body was held."""
    memory = new_memory(1 << 40)
    held: list[int] = []
    with pytest.raises(Refusal, match="larger than this gateway allows") as refused:
        await read_body(endless(memory, held), {}, MOST, memory)
    assert refused.value.status == 413
    assert len(held) * PIECE > DISCARD_BYTES  # the rest was read and discarded for a while
    assert max(held) == MOST
    assert memory.held == 0


async def test_the_budget_holds_while_a_body_streams() -> None:
    memory = new_memory(4 * PIECE)
    held: list[int] = []
    with pytest.raises(Refusal, match="fill the limit of 262144 bytes") as refused:
        await read_body(endless(memory, held), {}, MOST, memory)
    assert refused.value.status == 503
    assert dict(refused.value.headers) == {"retry-after": "5", "connection": "close"}
    assert max(held) == 3 * PIECE
    assert memory.held == 0


async def test_what_cannot_fit_is_refused_before_it_is_read() -> None:
    memory = new_memory()
    memory.take(3 * MOST - 10, 3 * MOST - 10)

    async def receive() -> Message:
        raise AssertionError("a client that waits for 100-continue must not get it")

    expecting = {b"content-length": b"100000", b"expect": b"100-continue"}
    with pytest.raises(Refusal) as refused:
        await read_body(receive, expecting, MOST, memory)
    assert refused.value.status == 503


async def test_a_body_that_drips_is_given_up() -> None:
    """Each chunk arrives within the idle limit; the whole body would take hours."""
    memory = new_memory()
    now = 0.0

    async def drip() -> Message:
        nonlocal now
        now += 50
        return {"type": "http.request", "body": b"x", "more_body": True}

    with pytest.raises(Refusal, match="less than 65536 bytes per second") as refused:
        await read_body(drip, {}, MOST, memory, lambda: now)
    assert refused.value.status == 408
    assert now == 100
    assert memory.held == 0


class Bodies(RuleBasedStateMachine):
    """Bodies grow and are dropped in any order."""

    bodies = Bundle("bodies")

    def __init__(self) -> None:
        super().__init__()
        self.metrics = Metrics(TableStore())
        self.memory = BodyMemory(16 * SMALL_BYTES, self.metrics)
        self.all: list[Body] = []
        self.refused = 0

    @rule(target=bodies)
    def begin(self) -> Body:
        self.all.append(Body(self.memory))
        return self.all[-1]

    @rule(body=bodies, units=st.integers(0, 40))
    def grow(self, body: Body, units: int) -> None:
        more, size = units * SMALL_BYTES // 8, len(body) + units * SMALL_BYTES // 8
        room = (16 if size <= SMALL_BYTES else 12) * SMALL_BYTES - sum(map(len, self.all))
        if more <= room:
            body.add(bytes(more))
            return
        self.refused += 1
        with pytest.raises(Refusal):
            body.add(bytes(more))

    @rule(body=consumes(bodies), twice=st.booleans())
    def drop(self, body: Body, twice: bool) -> None:
        with body:
            if twice:
                body.drop()
        assert len(body) == 0

    @invariant()
    def counts(self) -> None:
        self.memory.check_integrity()
        assert self.memory.held == sum(map(len, self.all))
        assert self.metrics.registry.get_sample_value("plimsoll_gateway_body_bytes") == self.memory.held
        assert self.metrics.refused_bodies._value.get() == self.refused


TestBodies = Bodies.TestCase
TestBodies.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


@pytest.fixture
async def sessionless() -> AsyncIterator[Gateway]:
    """A gateway with its real limits and no model."""
    store = TableStore()
    store.replace(build_table([]))
    async with Pool() as session:
        yield Gateway(session, store, Picker(), Limits())


HEAD: Message = {"type": "http", "http_version": "1.0", "method": "POST", "query_string": b""}


async def test_a_request_takes_its_body_and_little_more(sessionless: Gateway) -> None:
    """Whatever the body contains: here as many lists as fit, which as Python objects would be 28 times as large."""
    size = BODY_BYTES[CHAT]
    unit = b"[0]," * (PIECE // 4)
    pieces = [b'{"model": "m", "prompt": [', *[unit] * (size // PIECE - 1), b"0]}"]
    coming = deque(pieces)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": coming.popleft(), "more_body": bool(coming)}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {**HEAD, "path": CHAT, "raw_path": CHAT.encode(), "headers": []}
    tracemalloc.start()
    try:
        await sessionless(scope, receive, send)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sent[0]["status"] == 404
    assert sum(map(len, pieces)) <= peak < size * 9 // 8 + (1 << 20)


async def test_each_path_has_its_limit(world: World, ok: Behaviour, sessionless: Gateway) -> None:
    """Checked with the real limits; a client that declares its length is refused before it sends."""
    for path in MODEL_PATHS:
        limit = BODY_BYTES[path]
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message, sent: list[Message] = sent) -> None:
            sent.append(message)

        for length, status in ((limit, 400), (limit + 1, 413)):
            headers = [(b"content-length", b"%d" % length)]
            scope = {**HEAD, "path": path, "raw_path": path.encode(), "headers": headers}
            await sessionless(scope, receive, send)
            assert sent[-2]["status"] == status, path
        assert f"({limit} bytes, --max-body-bytes)" in json.loads(sent[-1]["body"])["error"]["message"]


async def test_large_requests_that_wait_leave_small_ones_alone(world: World) -> None:
    arrived: asyncio.Queue[Request] = asyncio.Queue()
    await world.model(arrived.put)
    large = b'{"model": "m", "x": "%s"}' % (b"y" * (MOST - 100))
    waiting = [asyncio.create_task(post(world, large)) for _ in range(3)]
    held = [await arrived.get() for _ in range(3)]
    assert await world.metric("plimsoll_gateway_body_bytes") == 3 * len(large)
    status, answer = await post(world, large)
    assert (status, json.loads(answer)["error"]["code"]) == (503, "overloaded")
    assert await world.metric("plimsoll_gateway_refused_bodies_total") == 1
    status, answer = await post(world, b'{"model": "nobody"}')
    assert status == 404
    for request in held:
        request.respond(200, "done")
    assert [await task for task in waiting] == [(200, b"done")] * 3
    assert await world.metric("plimsoll_gateway_body_bytes") == 0


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Body]]]:
    """All bodies that the gateway has read and that are still referenced; the garbage collector is off."""
    read: list[weakref.ref[Body]] = []

    async def reading(
        receive: Receive, headers: dict[bytes, bytes], limit: int, memory: BodyMemory, **options: Any
    ) -> Body:
        body = await read_body(receive, headers, limit, memory, **options)
        read.append(weakref.ref(body))
        return body

    monkeypatch.setattr(exchange, "read_body", reading)
    gc.collect()
    gc.disable()
    yield read
    gc.enable()


async def test_a_body_is_dropped_when_its_answer_begins(world: World, bodies: list[weakref.ref[Body]]) -> None:
    async def behave(request: Request) -> None:
        request.body = b""
        request.begin_events()
        request.chunk("data: 0\n\n")

    await world.model(behave)
    tracemalloc.start()
    try:
        body = b'{"model": "m", "x": "%s"}' % (b"y" * (MOST - 100))
        streams = [await opened(world, body) for _ in range(10)]
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(bodies) == 10
    assert now < 3 * MOST  # the one that this test holds, and ten streams
    assert await world.metric("plimsoll_gateway_body_bytes") == 0
    assert await world.metric('plimsoll_gateway_requests_in_flight{model="m",namespace="ns"}') == 10
    for stream in streams:
        stream.close()


@pytest.mark.matrix(2)
@pytest.mark.parametrize("how", ["waiting", "streaming", "cut", "refused", "answered"])
async def test_nothing_of_a_request_outlives_it(world: World, bodies: list[weakref.ref[Body]], how: str) -> None:
    """However it ends, without the garbage collector."""
    arrived: asyncio.Queue[Request] = asyncio.Queue()

    async def behave(request: Request) -> None:
        if how in ("streaming", "cut"):
            request.begin_events()
            request.chunk("data: 0\n\n")
        elif how == "answered":
            request.respond(200, "done")
        await arrived.put(request)

    await world.model(behave)
    name = b"nobody" if how == "refused" else b"m"
    body = b'{"model": "%s", "x": "%s"}' % (name, b"y" * PIECE * 4)
    for number in range(1, 21):
        call = asyncio.create_task(opened(world, body))
        if how != "refused":
            await arrived.get()
        if how == "waiting":
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        else:
            stream = await call
            if how == "cut":
                world.gateway.cut()
            if how != "streaming":
                await stream.read()
            stream.close()
        async with asyncio.timeout(60):
            while any(each() is not None for each in bodies):
                await asyncio.sleep(0)
        assert len(bodies) == number
    assert await world.metric("plimsoll_gateway_body_bytes") == 0


async def opened(world: World, body: bytes) -> aiohttp.ClientResponse:
    """Return a response that has begun."""
    return await world.client.post(world.url + CHAT, data=body)


async def post(world: World, body: bytes) -> tuple[int, bytes]:
    """Return status and content of a response."""
    async with world.client.post(world.url + CHAT, data=body) as response:
        return response.status, await response.read()
