"""Connections between gateways: peers with the secret are served; other data does no harm."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import msgspec
import pytest
from quota_sync_support.network import api_key

from plimsoll_gateway.admission.quota.reservation import Quotas
from plimsoll_gateway.admission.quota.usage import Kind
from plimsoll_gateway.admission.quota_sync import exchange, listener
from plimsoll_gateway.admission.quota_sync.channel import (
    MAGIC,
    MOST_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    TAG_BYTES,
    Channel,
    WireError,
    accept,
    dial,
)
from plimsoll_gateway.admission.quota_sync.listener import Listener
from plimsoll_gateway.admission.quota_sync.messages import Line, Reply, Report
from plimsoll_gateway.admission.quota_sync.node import Node

SECRET = b"the-secret-of-all-gateways"
OWN, PEER, THIRD = "127.0.0.1:8082", "127.0.0.1:8083", "127.0.0.1:8084"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Served:
    """A listener on a real socket."""

    listener: Listener
    node: Node
    port: int

    @contextlib.asynccontextmanager
    async def raw(self) -> AsyncIterator[Streams]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def channel(self, secret: bytes = SECRET) -> AsyncIterator[Channel]:
        async with self.raw() as (reader, writer):
            yield await dial(reader, writer, secret)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    keys = {"k": api_key(requests_per_minute=90)}
    node = Node(OWN, "0" * 32, Quotas(), lambda: keys, time.monotonic())
    node.list([OWN, PEER, THIRD], time.monotonic())
    listener = Listener(node, lambda: [SECRET, b"the-one-before-this-one"], frozenset([8082]))
    server = await asyncio.start_server(listener.welcome, "127.0.0.1", 0)
    yield Served(listener, node, server.sockets[0].getsockname()[1])
    server.close()
    listener.close()


LINE = Line("k", Kind.REQUESTS, 45, 3, 9)


def report(
    number: int = 1, sender: str = PEER, *, instance: str = "1" * 32, lines: tuple[Line, ...] = (LINE,)
) -> Report:
    return Report(sender, instance, number, True, lines)


async def ask(channel: Channel, given: Report) -> Reply:
    await channel.send(msgspec.msgpack.encode(given))
    return msgspec.msgpack.decode(await channel.receive(), type=Reply)


async def ended(channel: Channel) -> bool:
    """Return whether the peer closes the connection."""
    async with asyncio.timeout(60):
        try:
            await channel.receive()
        except OSError:
            return True
    return False


async def test_a_report_is_replied_to(served: Served) -> None:
    async with served.channel() as channel:
        for number in (1, 2, 5):
            reply = await ask(channel, report(number))
            assert (reply.number, reply.grants[0].key) == (number, "k")
    assert PEER in served.node.membership.members
    assert served.listener.refused == 0


async def test_the_secret_before_this_one_is_taken_too(served: Served) -> None:
    async with served.channel(b"the-one-before-this-one") as channel:
        assert (await ask(channel, report())).number == 1


async def test_a_wrong_secret_is_refused_on_both_sides(served: Served) -> None:
    with pytest.raises(WireError, match="check that both gateways have the same secret"):
        async with served.channel(b"another-secret-altogether"):
            pass
    assert served.listener.refused == 1

    async def pretends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(MAGIC + bytes(NONCE_BYTES))
        await reader.readexactly(NONCE_BYTES + PROOF_BYTES)
        writer.write(bytes(PROOF_BYTES))
        writer.close()

    server = await asyncio.start_server(pretends, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    with pytest.raises(WireError, match="does not have our secret"):
        await dial(reader, writer, SECRET)
    writer.transport.abort()
    server.close()


async def test_what_was_overheard_opens_no_connection(served: Served) -> None:
    """The bytes of a peer with the secret are replayed."""
    said = b""
    async with served.raw() as (reader, writer):
        write = writer.write

        def overhear(data: bytes) -> None:
            nonlocal said
            said += data
            write(data)

        writer.write = overhear  # type: ignore[method-assign, assignment]
        channel = await dial(reader, writer, SECRET)
        assert (await ask(channel, report())).number == 1
    async with served.raw() as (reader, writer):
        writer.write(said)
        assert len(await reader.read()) == len(MAGIC) + NONCE_BYTES
    assert served.listener.refused == 1


async def _garbage(streams: Streams) -> None:
    streams[1].write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 100)


async def _huge(streams: Streams) -> None:
    await dial(*streams, SECRET)
    streams[1].write((MOST_BYTES + 1).to_bytes(4, "big"))


async def _forged(streams: Streams) -> None:
    await dial(*streams, SECRET)
    payload = msgspec.msgpack.encode(report())
    streams[1].write(len(payload).to_bytes(4, "big") + payload + bytes(TAG_BYTES))


def _says(*payloads: bytes) -> Callable[[Streams], Awaitable[None]]:
    async def say(streams: Streams) -> None:
        channel = await dial(*streams, SECRET)
        for payload in payloads:
            await channel.send(payload)

    return say


def _reports(**fields: object) -> Callable[[Streams], Awaitable[None]]:
    return _says(msgspec.msgpack.encode(report(**fields)))  # type: ignore[arg-type]


async def _repeated(streams: Streams) -> None:
    """Replay a message within its own connection."""
    channel, said, write = await dial(*streams, SECRET), [], streams[1].write

    def overhear(data: bytes) -> None:
        said.append(data)
        write(data)

    streams[1].write = overhear  # type: ignore[method-assign, assignment]
    await channel.send(msgspec.msgpack.encode(report()))
    await channel.receive()
    write(said[0])


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (_garbage, "does not have our secret"),
        (_huge, "the limit is 4194304"),
        (_forged, "the HMAC of a message is wrong"),
        (_repeated, "the HMAC of a message is wrong"),
        (_says(b"\xc1"), "MessagePack"),
        (_says(b"[]"), "Expected `array`"),
        (_says(b"\x95\xa4\xff\xff\xff\xff"), "utf-8"),
        (_says(b"\x95" + b"\x91" * 100_000), "Expected `str`"),
        (_reports(lines=(Line("k", Kind.REQUESTS, -1, 0, 0),)), "Expected `int` >= 0"),
        (_reports(lines=(Line("k", Kind.REQUESTS, 10**16, 0, 0),)), "Expected `int` <= "),
        (_reports(lines=(Line("no key's name", Kind.REQUESTS, 1, 0, 0),)), "matching regex"),
        (_reports(sender=OWN), "it reported our own address"),
        (_reports(sender="127.0.0.9:8082"), "other than the one it connects from"),
        (_reports(sender="127.0.0.1:9999"), "a port that is not in --peers"),
        (_reports(sender="nowhere"), "it reported an invalid address"),
        (_says(*[msgspec.msgpack.encode(report(1))] * 2), "report 1 of"),
        (_says(*[msgspec.msgpack.encode(report(sender=one)) for one in (PEER, THIRD)]), "two different addresses"),
    ],
)
async def test_who_says_what_no_gateway_would_is_ended_and_told_of(
    served: Served, say: Callable[[Streams], Awaitable[None]], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served.channel() as friend:
        await ask(friend, report(7, sender=THIRD, instance="2" * 32))
        async with served.raw() as streams, asyncio.timeout(60):
            await say(streams)
            await streams[0].read()  # until it is closed
        assert served.listener.refused == 1
        assert why in caplog.text
        assert SECRET.decode() not in caplog.text
    served.node.check_integrity(time.monotonic())


@pytest.mark.parametrize("reply", [b"\x94\xd9\x20" + b"\xff" * 32 + b"\x01\x90\x90", b"\x91" * 100_000, b"\xc1"])
async def test_a_reply_that_cannot_be_read_ends_no_more_than_its_connection(
    reply: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exchange, "TURN_SECONDS", 0.0)
    came: asyncio.Queue[int] = asyncio.Queue()
    serving: set[asyncio.Task[None] | None] = set()

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        try:
            channel = await accept(reader, writer, [SECRET])
            await came.put(len(await channel.receive()))
            await channel.send(reply)
            await reader.read()
        except OSError:
            pass  # the exchange has ended
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(welcome, "127.0.0.1", 0)
    peer = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    node = Node(OWN, "0" * 32, Quotas(), lambda: {}, time.monotonic())
    node.list([OWN, peer], time.monotonic())
    talk = exchange.Talk(node, "0" * 32, peer, lambda: [SECRET], time.monotonic)
    async with asyncio.timeout(60):
        await came.get()
        await came.get()  # it has sent another report
    assert ": it sent an invalid message" in caplog.text
    server.close()
    talk.end()
    await asyncio.wait({talk._task})
    await asyncio.gather(*(task for task in serving if task is not None))


async def test_a_gateway_that_floods_waits_and_no_other_does(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends a hundred reports before the other gateway sends one, and gets one reply for each of the other's."""
    rests: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    async def rest(_: float) -> None:
        await rests.put(turn := asyncio.get_running_loop().create_future())
        await turn

    monkeypatch.setattr("plimsoll_gateway.admission.quota_sync.listener.asyncio.sleep", rest)
    async with served.channel() as flood, served.channel() as friend, asyncio.timeout(60):
        for number in range(1, 101):
            await flood.send(msgspec.msgpack.encode(report(number)))
        first = await rests.get()
        for number in range(1, 4):
            assert (await ask(friend, report(number, sender=THIRD))).number == number
            (await rests.get()).set_result(None)
        assert rests.empty()
        first.set_result(None)
        await rests.get()


async def test_strangers_that_say_nothing_are_bounded(served: Served) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(listener.MOST_STRANGERS):
            reader, _ = await stack.enter_async_context(served.raw())
            await reader.readexactly(len(MAGIC))
        reader, _ = await stack.enter_async_context(served.raw())
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""


async def test_keys_that_nobody_has_are_not_remembered(served: Served) -> None:
    lines = tuple(Line(f"made-up-{number}", Kind.REQUESTS, 5, 5, 5) for number in range(1000))
    async with served.channel() as channel:
        assert (await ask(channel, report(lines=lines))).grants == ()
    assert list(served.node.owner.entries()) == []


async def test_one_that_lies_about_its_need_gets_a_fair_share(served: Served) -> None:
    """If a gateway reports that it has used everything, the others get only what they hold."""
    async with served.channel() as channel:
        for number in range(1, 6):
            lie = Line("k", Kind.REQUESTS, 30, 0, 10**15)
            (grant,) = (await ask(channel, report(number, lines=(lie,)))).grants
            served.node.turn(time.monotonic())
    assert grant.share <= 90
    assert served.node.membership.members == (OWN, PEER, THIRD)
