"""An answer is the same however its bytes are cut, and one that is cut off is never taken for a whole one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.client.connection import MOST_FIELDS, MOST_HEAD_BYTES, PIECE, Connection
from plimsoll_gateway.client.errors import BrokenResponseError, InvalidResponseError, ResetError, UpstreamError
from plimsoll_gateway.client.response import MOST_BUFFERED, Response

HEAD = b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n"
BODY = memoryview(b"{}")
EARLY = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n"]


class Wire(asyncio.Transport):
    """Keeps what is written; nothing goes anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closing = False
        self.paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True

    close = abort

    def is_paused(self) -> bool:
        return self.paused

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


@dataclass
class Line:
    """A connection, and what it told its owner."""

    wire: Wire = field(default_factory=Wire)
    rested: int = 0
    gone: int = 0

    def __post_init__(self) -> None:
        self.connection = Connection(self._rest, self._gone)
        self.connection.connection_made(self.wire)

    def _rest(self, _: Connection) -> None:
        self.rested += 1

    def _gone(self, _: Connection) -> None:
        self.gone += 1

    async def ask(self, body: memoryview = BODY) -> asyncio.Task[Response]:
        task = asyncio.create_task(self.connection.ask(HEAD, body))
        await asyncio.sleep(0)
        return task


@dataclass(frozen=True)
class Wanted:
    """An answer as a replica sends it: `body` follows `head`, and `framed` says whether its end can be seen."""

    head: bytes
    body: bytes
    text: bytes
    framed: bool
    keeps: bool


@st.composite
def answers(draw: st.DrawFn) -> Wanted:
    text = draw(st.binary(max_size=60))
    early = b"".join(draw(st.lists(st.sampled_from(EARLY), max_size=2)))
    kind = draw(st.sampled_from(["length", "chunks", "close"]))
    keeps = draw(st.booleans()) and kind != "close"
    head = early + b"HTTP/1.1 200 OK\r\nX-Kind: a\r\n" + (b"" if keeps else b"Connection: close\r\n")
    if kind == "length":
        return Wanted(head + b"Content-Length: %d\r\n\r\n" % len(text), text, text, True, keeps)
    if kind == "close":
        return Wanted(head + b"\r\n", text, text, False, keeps)
    cuts = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=4))})
    pieces = [text[a:b] for a, b in pairwise(cuts)]
    trailer = draw(st.sampled_from([b"", b"x-late: 1\r\n"]))
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + trailer + b"\r\n"
    return Wanted(head + b"Transfer-Encoding: chunked\r\n\r\n", body, text, True, keeps)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(ends)]


async def read_all(response: Response) -> bytes:
    text = b""
    while piece := await response.read():
        text += piece
    return text


@given(wanted=answers(), places=st.lists(st.integers(0, 10_000), max_size=12))
def test_an_answer_is_the_same_however_it_is_cut(wanted: Wanted, places: list[int]) -> None:
    async def run() -> None:
        line = Line()
        task = await line.ask()
        for piece in cut(wanted.head + wanted.body, places):
            line.connection.data_received(piece)
        if not wanted.framed:
            line.connection.connection_lost(None)
        response = await task
        assert response.status == 200
        assert response.header(b"x-kind") == b"a"
        assert response.header(b"link") is None
        assert response.header(b"x-late") is None
        assert await read_all(response) == wanted.text
        assert (line.rested, line.wire.closing) == ((1, False) if wanted.keeps else (0, wanted.framed))

    asyncio.run(run())


@given(wanted=answers(), place=st.integers(0, 10_000))
def test_an_answer_that_is_cut_off_is_never_whole(wanted: Wanted, place: int) -> None:
    async def run() -> None:
        line = Line()
        data = wanted.head + wanted.body
        came = data[: place % len(data)]
        task = await line.ask()
        line.connection.data_received(came)
        line.connection.connection_lost(ConnectionResetError("reset"))
        if len(came) < len(wanted.head):
            with pytest.raises(ResetError):
                await task
        else:
            response = await task
            with pytest.raises(BrokenResponseError):
                await read_all(response)
        assert (line.rested, line.gone) == (0, 1)

    asyncio.run(run())


async def test_a_close_ends_an_answer_that_has_no_other_end_and_breaks_the_rest() -> None:
    for head, breaks in ((b"", False), (b"content-length: 9\r\n", True), (b"transfer-encoding: chunked\r\n", True)):
        line = Line()
        task = await line.ask()
        line.connection.data_received(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")
        line.connection.connection_lost(None)
        response = await task
        if breaks:
            with pytest.raises(BrokenResponseError):
                await response.read()
        else:
            assert await response.read() == b""


@pytest.mark.parametrize("text", [b"HTTP/9.9 hello\r\n\r\n", b"\x00\x01", b"HTTP/1.1 101 S\r\nupgrade: x\r\n\r\nabc",
                                  b"HTTP/1.1 200 OK\r\nx: " + b"y" * MOST_HEAD_BYTES,
                                  b"HTTP/1.1 200 OK\r\nx: " + b"y" * MOST_HEAD_BYTES + b"\r\n\r\n",
                                  b"HTTP/1.1 200 OK\r\n" + b"a:b\r\n" * (MOST_FIELDS + 1) + b"\r\n"])  # fmt: skip
async def test_what_is_no_answer_ends_the_connection(text: bytes) -> None:
    line = Line()
    task = await line.ask()
    line.connection.data_received(text)
    if b"101" in text:
        assert (await task).status == 101
    else:
        with pytest.raises(InvalidResponseError):
            await task
    assert line.wire.closing
    assert line.rested == 0


async def test_garbage_within_a_body_breaks_it() -> None:
    line = Line()
    task = await line.ask()
    line.connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\nzz\r\n")
    response = await task
    assert await response.read() == b"hi"
    with pytest.raises(BrokenResponseError):
        await response.read()
    assert line.wire.closing


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    idle = Line()
    idle.connection.data_received(whole)
    assert idle.wire.closing
    line = Line()
    task = await line.ask()
    line.connection.data_received(whole + whole)
    assert await read_all(await task) == b"{}"
    assert (line.rested, line.wire.closing) == (0, True)


async def test_an_answer_that_nobody_reads_stops_its_replica() -> None:
    line = Line()
    task = await line.ask()
    size = 4 * MOST_BUFFERED
    line.connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
    response = await task
    for _ in range(2):
        line.connection.data_received(b"x" * MOST_BUFFERED)
        assert not line.wire.is_paused()
        line.connection.data_received(b"x")
        assert line.wire.is_paused()
        assert len(await response.read()) == MOST_BUFFERED + 1
        assert not line.wire.is_paused()
    line.connection.data_received(b"x" * (size - 2 * MOST_BUFFERED - 2))
    assert line.rested == 1
    assert not line.wire.is_paused()  # another request may have it, whoever reads the last one's answer
    assert len(await response.read()) == size - 2 * MOST_BUFFERED - 2
    assert await response.read() == b""


async def test_closing_an_answer_ends_its_request_and_no_other() -> None:
    line = Line()
    task = await line.ask()
    line.connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
    running = await task
    running.close()
    assert line.wire.closing
    line = Line()
    task = await line.ask()
    line.connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    again = await line.ask()  # before the first one has noticed that it has its answer
    first = await task
    first.close()
    assert not line.wire.closing
    line.connection.data_received(b"HTTP/1.1 201 OK\r\ncontent-length: 0\r\n\r\n")
    assert (await again).status == 201


async def test_a_request_that_is_given_up_ends_its_connection_unless_another_has_it() -> None:
    line = Line()
    task = await line.ask()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert line.wire.closing
    line = Line()
    task = await line.ask()
    begin = asyncio.Event()

    async def ask_again() -> Response:
        await begin.wait()
        return await line.connection.ask(HEAD, BODY)

    again = asyncio.create_task(ask_again())
    await asyncio.sleep(0)
    begin.set()  # it goes on before the first one does
    line.connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0)
    assert not line.wire.closing
    line.connection.data_received(b"HTTP/1.1 201 OK\r\ncontent-length: 0\r\n\r\n")
    assert (await again).status == 201


async def test_a_small_request_is_one_write_and_a_large_one_waits_for_room() -> None:
    line = Line()
    await line.ask()
    assert line.wire.sent == [HEAD + b"{}"]
    line = Line()
    body = memoryview(b"x" * (3 * PIECE + 1))
    line.connection.pause_writing()
    task = await line.ask(body)
    for _ in range(5):
        await asyncio.sleep(0)
    assert b"".join(line.wire.sent) == HEAD + b"x" * PIECE
    line.connection.resume_writing()
    for _ in range(10):
        await asyncio.sleep(0)
    assert b"".join(line.wire.sent) == HEAD + bytes(body)
    line.connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert (await task).status == 200
    assert line.rested == 1


@pytest.mark.parametrize("lost", [False, True])
async def test_a_replica_that_takes_no_more_of_a_large_request_is_heard(lost: bool) -> None:
    line = Line()
    line.connection.pause_writing()
    task = await line.ask(memoryview(b"x" * (9 * PIECE)))
    found: Response | UpstreamError
    if lost:
        line.connection.connection_lost(ConnectionResetError("reset"))
        with pytest.raises(ResetError):
            await task
    else:
        line.connection.data_received(b"HTTP/1.1 413 No\r\ncontent-length: 2\r\n\r\n{}")
        found = await task
        assert (found.status, await read_all(found)) == (413, b"{}")
        assert (line.rested, line.wire.closing) == (0, True)
    assert len(b"".join(line.wire.sent)) < 3 * PIECE


async def test_what_was_peeked_at_is_still_read() -> None:
    line = Line()
    task = await line.ask()
    line.connection.data_received(b"HTTP/1.1 404 No\r\ncontent-length: 9\r\n\r\nabc")
    response = await task
    assert await response.peek(2) == b"abc"
    line.connection.data_received(b"def")
    assert await response.read() == b"abcdef"
    line.connection.data_received(b"gh")
    line.connection.connection_lost(ConnectionResetError("reset"))
    assert await response.peek(99) == b"gh"
    assert await response.read() == b"gh"
    with pytest.raises(BrokenResponseError):
        await response.read()


async def test_a_trailer_without_end_breaks_its_answer() -> None:
    line = Line()
    task = await line.ask()
    line.connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(3):
        line.connection.data_received(b"%x\r\n" % MOST_HEAD_BYTES + b"x" * MOST_HEAD_BYTES + b"\r\n")
    response = await task
    assert len(await response.read()) == 3 * MOST_HEAD_BYTES
    line.connection.data_received(b"0\r\nx-late: ")
    line.connection.data_received(b"y" * (MOST_HEAD_BYTES // 2))
    assert not line.wire.is_closing()
    line.connection.data_received(b"y" * MOST_HEAD_BYTES)
    assert line.wire.is_closing()
    with pytest.raises(BrokenResponseError, match="trailer"):
        await response.read()
