"""A gateway on a real socket, with upstreams that a test controls."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from gateway_support.front import serve_asgi

from plimsoll_gateway.admission.limits import BODY_BYTES, Limits
from plimsoll_gateway.app import Gateway
from plimsoll_gateway.client.pool import Pool
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, TableStore, build_table
from plimsoll_gateway.routing.pick import Picker
from plimsoll_gateway.server.connection_guard import guarded

MAX_BODY = 1 << 20
MAX_WAITING = 3
MAX_HELD = 4 << 20
LIMITS = Limits(dict.fromkeys(BODY_BYTES, MAX_BODY), MAX_HELD, MAX_WAITING)


@dataclass
class Request:
    """A request that an upstream received."""

    line: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, text: str | bytes) -> None:
        self.writer.write(text.encode() if isinstance(text, str) else text)

    def respond(self, status: int, body: str, *headers: str) -> None:
        head = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(body.encode())}", *headers]
        self.send("\r\n".join(head) + "\r\n\r\n" + body)

    def begin(self, *headers: str) -> None:
        """Send the head of a chunked response."""
        self.send("\r\n".join(["HTTP/1.1 200 OK", "transfer-encoding: chunked", *headers]) + "\r\n\r\n")

    def begin_events(self) -> None:
        self.begin("content-type: text/event-stream; charset=utf-8")

    def chunk(self, data: str | bytes) -> None:
        raw = data.encode() if isinstance(data, str) else data
        self.send(b"%x\r\n%s\r\n" % (len(raw), raw))

    def end(self) -> None:
        self.send("0\r\n\r\n")

    def die(self) -> None:
        self.writer.transport.abort()


Behaviour = Callable[[Request], Awaitable[None]]


class Upstream:
    """A minimal HTTP/1.1 server. Each request uses the next behaviour; the last one stays."""

    def __init__(self, *behaviours: Behaviour) -> None:
        self._behaviours = list(behaviours)
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[Request] = []
        self.asked = asyncio.Event()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request: Request | None = None
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                line, *fields = head.strip().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (one.partition(":") for one in fields)}
                request = Request(line, headers, await body_of(reader, headers), writer)
                self.requests.append(request)
                self.asked.set()
                behaviour = self._behaviours.pop(0) if len(self._behaviours) > 1 else self._behaviours[0]
                await behaviour(request)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            if request is not None:
                request.hung_up.set()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def body_of(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    """Read a complete body of either framing."""
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:size]
    await reader.readline()
    return body


class World:
    """The gateway under test, its table, and a client."""

    def __init__(
        self, gateway: Gateway, store: TableStore, url: str, inside_url: str, client: aiohttp.ClientSession
    ) -> None:
        self.gateway = gateway
        self.store = store
        self.url = url
        self.inside_url = inside_url
        self.client = client
        self._ids = itertools.count()
        self._upstreams: list[Upstream] = []

    async def upstream(self, *behaviours: Behaviour) -> Upstream:
        made = Upstream(*behaviours)
        await made.start()
        self._upstreams.append(made)
        return made

    def replica(self, target: Upstream | int, *, ready: bool = True) -> Replica:
        port = target if isinstance(target, int) else target.port
        return Replica(f"r{next(self._ids)}", f"http://127.0.0.1:{port}", ready)

    def show(self, *replicas: Replica, name: str = "m", message: str = "", **fields: Any) -> None:
        """Set a table of one model with these replicas."""
        model = Model(ObjectKey("ns", name), (name,), 1000.0, message, replicas, **fields)
        self.store.replace(build_table([model]))

    async def model(self, *behaviours: Behaviour) -> Upstream:
        """Set a model `m` with one replica."""
        made = await self.upstream(*behaviours)
        self.show(self.replica(made))
        return made

    def post(
        self, body: object = None, path: str = "/v1/chat/completions", **options: object
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self.client.post(self.url + path, json={"model": "m"} if body is None else body, **options)  # type: ignore[arg-type]

    def get(self, path: str) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self.client.get(self.url + path)

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON of a response."""
        async with self.client.request(method, self.url + path, **options) as response:
            return response.status, await response.json()

    def inside(self, path: str) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send a request to the port that clients cannot reach."""
        return self.client.get(self.inside_url + path)

    async def metric(self, line: str) -> float:
        """Return the value of one series, 0 if it does not exist."""
        async with self.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        return next((float(one.removeprefix(line)) for one in lines if one.startswith(line + " ")), 0.0)

    async def close(self) -> None:
        for upstream in self._upstreams:
            await upstream.stop()


@contextlib.asynccontextmanager
async def running_world(
    limits: Limits = LIMITS, bounded: Callable[[], float] | None = None, **options: Any
) -> AsyncIterator[World]:
    """A gateway without a model; `options` are Gateway's. `bounded`: the clock of the connection limit."""
    store = TableStore()
    async with Pool() as upstreams, aiohttp.ClientSession() as client:
        gateway = Gateway(upstreams, store, Picker(), limits, **options)
        if bounded is not None:
            gateway.connection_limit._clock = bounded
        async with (
            serve_asgi(gateway, guarded(gateway.connection_limit)) as url,
            serve_asgi(gateway.operations) as inside_url,
        ):
            made = World(gateway, store, url, inside_url, client)
            try:
                yield made
            finally:
                await made.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running_world() as made:
        yield made


@pytest.fixture
def run_world() -> Callable[..., contextlib.AbstractAsyncContextManager[World]]:
    """For gateways with other options: `async with run_world(keyring=keyring) as world`."""
    return running_world


async def answer_ok(request: Request) -> None:
    """A small JSON response."""
    request.respond(200, '{"ok": true}', "content-type: application/json")


async def answer_503(request: Request) -> None:
    """The response of a draining runtime."""
    request.respond(503, '{"error": {"message": "draining"}}', "content-type: application/json", "retry-after: 7")


async def reset(request: Request) -> None:
    """Disconnect before a response."""
    request.die()


@pytest.fixture
def ok() -> Behaviour:
    return answer_ok


@pytest.fixture
def unavailable() -> Behaviour:
    return answer_503


@pytest.fixture
def resets() -> Behaviour:
    return reset


@pytest.fixture
def refused_port() -> Iterator[int]:
    """A port that nothing listens on, and that no other process gets during the test."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
