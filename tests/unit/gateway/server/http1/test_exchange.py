"""How an answer is written: as long as it said it would be, and with nothing in its head that is no field."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from plimsoll_gateway.proxy.response_observer import ResponseObserver
from plimsoll_gateway.proxy.response_stream import WHOLE
from plimsoll_gateway.server.http1.exchange import BadAnswerError, Cycle
from plimsoll_gateway.server.http1.write_buffer import CorkedTransport

Behaviour = Callable[[Any], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = self.held = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += self.held + bytes(data)
        self.held = b""

    def hold(self, data: bytes) -> None:
        self.held += data

    def close(self) -> None:
        self.closed = True


class Exchange:
    """A cycle, and what came of it."""

    def __init__(self, method: str = "POST", *, keep_alive: bool = True) -> None:
        self.transport = Transport()
        self.ended = 0
        log = logging.getLogger(__name__)
        self.cycle = Cycle(
            scope={"method": method},
            transport=self.transport,
            flow=FlowControl(self.transport),
            logger=log,
            access_logger=log,
            access_log=False,
            default_headers=[(b"date", b"today")],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=keep_alive,
            on_response=self.end,
            tasks=set(),
            hold=self.transport.hold,
        )

    def end(self) -> None:
        self.ended += 1

    async def start(self, headers: Headers, status: int = 200) -> None:
        await self.cycle.send({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, data: bytes, *, more: bool = False) -> None:
        await self.cycle.send({"type": "http.response.body", "body": data, "more_body": more})


HEAD = b"HTTP/1.1 200 OK\r\ndate: today\r\n"


async def test_a_head_waits_for_a_body_that_follows_at_once_and_for_no_other() -> None:
    for whole in (True, False):
        exchange, length = Exchange(), [(b"content-length", b"4")]
        await exchange.cycle.send({"type": "http.response.start", "status": 200, "headers": length, WHOLE: whole})
        assert exchange.transport.written == (b"" if whole else HEAD + b"content-length: 4\r\n\r\n")
        await exchange.body(b"abcd")
        assert exchange.transport.written == HEAD + b"content-length: 4\r\n\r\nabcd"


async def test_an_answer_with_a_length() -> None:
    exchange = Exchange()
    await exchange.start([(b"content-length", b"4"), (b"x", b"y")])
    await exchange.body(b"ab", more=True)
    assert (exchange.ended, exchange.cycle.response_complete) == (0, False)
    await exchange.body(b"cd")
    assert exchange.transport.written == HEAD + b"content-length: 4\r\nx: y\r\n\r\nabcd"
    assert (exchange.ended, exchange.cycle.response_complete, exchange.transport.closed) == (1, True, False)


async def test_an_answer_without_a_length_goes_in_chunks() -> None:
    exchange = Exchange()
    await exchange.start([])
    await exchange.body(b"a" * 16, more=True)
    await exchange.body(b"", more=True)
    await exchange.body(b"")
    chunks = b"10\r\n" + b"a" * 16 + b"\r\n0\r\n\r\n"
    assert exchange.transport.written == HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 204), ("POST", 304)])
async def test_an_answer_without_a_body(method: str, status: int) -> None:
    exchange = Exchange(method)
    await exchange.start([(b"content-length", b"9")] if method == "HEAD" else [], status)
    await exchange.body(b"123456789" if method == "HEAD" else b"")
    assert exchange.transport.written.endswith(b"\r\n\r\n")
    assert b"chunked" not in exchange.transport.written
    assert exchange.ended == 1


async def test_an_answer_without_a_field() -> None:
    exchange = Exchange()
    exchange.cycle.default_headers = []
    await exchange.start([], 204)
    await exchange.body(b"")
    assert exchange.transport.written == b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.mark.parametrize("headers", [[], [(b"connection", b"close")]])
async def test_a_connection_that_ends_says_so_once(headers: Headers) -> None:
    exchange = Exchange(keep_alive=False)
    await exchange.start([(b"content-length", b"0"), *headers])
    await exchange.body(b"")
    assert exchange.transport.written.count(b"connection: close\r\n") == 1
    assert exchange.transport.closed


async def test_who_says_that_the_connection_ends_ends_it() -> None:
    exchange = Exchange()
    await exchange.start([(b"content-length", b"0"), (b"connection", b"close")])
    await exchange.body(b"")
    assert exchange.transport.closed


@pytest.mark.parametrize("sent", [b"abc", b"abcde"])
async def test_a_length_that_is_not_kept_to_is_an_error(sent: bytes) -> None:
    exchange = Exchange()
    await exchange.start([(b"content-length", b"4")])
    with pytest.raises(BadAnswerError):
        await exchange.body(sent)
    assert exchange.ended == 0


@pytest.mark.parametrize("bad", [b"a\r\nx-b: c", b"a\nb", b"a\rb", b"a\0b"])
@pytest.mark.parametrize("as_name", [False, True])
async def test_nothing_is_sent_of_a_head_with_an_end_of_a_line_in_a_field(bad: bytes, *, as_name: bool) -> None:
    exchange = Exchange()
    with pytest.raises(BadAnswerError):
        await exchange.start([(bad, b"v") if as_name else (b"n", bad)])
    assert (exchange.transport.written, exchange.cycle.response_started) == (b"", False)


async def test_an_answer_has_one_end() -> None:
    exchange = Exchange()
    await exchange.start([])
    await exchange.body(b"")
    with pytest.raises(BadAnswerError):
        await exchange.body(b"more")


async def test_a_client_has_its_answer_before_it_is_written_down(
    world: Any, ok: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    flush, answered = CorkedTransport.flush, ResponseObserver.answered

    def flushing(self: CorkedTransport) -> None:
        if self._held:
            happened.append("sent")
        flush(self)

    def witnessing(self: ResponseObserver, *args: Any) -> None:
        happened.append("written down")
        answered(self, *args)

    monkeypatch.setattr(CorkedTransport, "flush", flushing)
    monkeypatch.setattr(ResponseObserver, "answered", witnessing)
    await world.model(ok)
    async with world.post() as response:
        assert (response.status, await response.json()) == (200, {"ok": True})
    assert happened == ["sent", "written down"]
