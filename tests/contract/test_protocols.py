"""The time that gateway and runtime wait for the headers of a request, with a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from plimsoll_gateway.server import connection_guard as of_gateway
from plimsoll_runtime.api.server import listener as of_runtime

Protocol = type[of_gateway.ConnectionGuard] | type[of_runtime.PatientProtocol]
HEAD_SECONDS = 20
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Timer:
    """Replaces asyncio's handle."""

    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due, self.call, self.cancelled = due, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """The running loop with a fake clock."""

    def __init__(self) -> None:
        self._real = asyncio.get_running_loop()
        self._timers: list[Timer] = []
        self.now = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self._timers.append(Timer(self.now + delay, call))
        return self._timers[-1]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for timer in [timer for timer in self._timers if timer.due <= self.now]:
            self._timers.remove(timer)
            if not timer.cancelled:
                timer.call()


class Transport(asyncio.Transport):
    """Records the bytes written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed: bool = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return not self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Client:
    """The client side of one connection."""

    def __init__(self, protocol: Protocol, release: asyncio.Event) -> None:
        async def app(_scope: object, _receive: object, send: Callable[[dict[str, Any]], Any]) -> None:
            await release.wait()
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", timeout_keep_alive=75)
        config.load()
        self._tasks = ServerState()
        self.loop = Loop()
        self.transport = Transport()
        self._protocol = protocol(config, self._tasks, {}, _loop=self.loop)  # type: ignore[arg-type]
        self._protocol.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        self._protocol.data_received(data)

    async def answered(self) -> None:
        await asyncio.gather(*self._tasks.tasks)

    def wait(self, seconds: float) -> None:
        self.loop.pass_time(seconds)


@pytest.fixture
async def release() -> asyncio.Event:
    """If set, the application answers."""
    made = asyncio.Event()
    made.set()
    return made


@pytest.fixture(params=[of_gateway.ConnectionGuard, of_runtime.PatientProtocol], ids=["gateway", "runtime"])
async def client(request: pytest.FixtureRequest, release: asyncio.Event) -> Client:
    assert of_gateway.HEAD_SECONDS == of_runtime.HEAD_SECONDS == HEAD_SECONDS
    return Client(request.param, release)


async def test_a_fresh_connection_that_says_nothing_is_closed_without_a_word(client: Client) -> None:
    client.wait(HEAD_SECONDS - 1)
    assert not client.transport.is_closing()
    client.wait(1)
    assert client.transport.is_closing()
    assert client.transport.written == b""


async def test_bytes_do_not_renew_the_patience(client: Client) -> None:
    for index in range(HEAD_SECONDS):
        client.send(REQUEST[index : index + 1])
        client.wait(1)
    assert client.transport.is_closing()
    head, _, body = client.transport.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in head
    assert b"did not end within 20 s" in body


async def test_a_later_request_has_its_time_from_its_first_byte(client: Client) -> None:
    client.send(REQUEST)
    await client.answered()
    client.wait(60)
    assert not client.transport.is_closing()
    client.send(REQUEST[:5])
    client.wait(HEAD_SECONDS - 1)
    assert not client.transport.is_closing()
    client.wait(1)
    assert client.transport.is_closing()


async def test_an_answer_may_take_as_long_as_it_likes(client: Client, release: asyncio.Event) -> None:
    release.clear()
    client.send(REQUEST[:5])
    client.wait(HEAD_SECONDS - 1)
    client.send(REQUEST[5:])
    client.wait(100_000)
    client.send(REQUEST[:5])  # the first bytes of the next request, while this one is answered
    client.wait(100_000)
    assert not client.transport.is_closing()
    release.set()
    await client.answered()
    assert client.transport.written.startswith(b"HTTP/1.1 204 ")
    assert not client.transport.is_closing()


async def test_a_request_in_many_pieces_is_answered(client: Client) -> None:
    for _ in range(3):
        for byte in REQUEST:
            client.send(bytes([byte]))
        await client.answered()
        client.wait(HEAD_SECONDS + 1)
    assert client.transport.written.count(b"HTTP/1.1 204 ") == 3
    assert not client.transport.is_closing()
