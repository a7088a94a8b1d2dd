"""What is written in one round of the loop is sent together, in order, and never later than the end of a connection."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.server.http1.write_buffer import AT_ONCE, CorkedTransport


class Inner(asyncio.Transport):
    """Keeps each piece that is sent, and the end as None."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes | None] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.sent.append(None)

    def abort(self) -> None:
        self.sent.append(None)

    def get_write_buffer_size(self) -> int:
        return 0


async def test_a_head_and_its_body_are_one_packet() -> None:
    inner = Inner()
    transport = CorkedTransport(inner, asyncio.get_running_loop())
    transport.write(b"head")
    transport.write(b"")
    transport.write(b"body")
    assert inner.sent == []
    await asyncio.sleep(0)
    assert inner.sent == [b"headbody"]
    transport.write(b"next")
    await asyncio.sleep(0)
    assert inner.sent == [b"headbody", b"next"]


async def test_what_is_held_goes_with_what_follows_or_at_the_end() -> None:
    def write(transport: CorkedTransport) -> None:
        transport.write(b"body")
        transport.flush()

    for follow, sent in (
        (write, [b"headbody"]),
        (CorkedTransport.flush, [b"head"]),
        (CorkedTransport.close, [b"head", None]),
    ):
        inner = Inner()
        transport = CorkedTransport(inner, asyncio.get_running_loop())
        transport.hold(b"head")
        await asyncio.sleep(0)
        assert inner.sent == []
        follow(transport)
        assert inner.sent == sent


async def test_what_is_much_waits_for_nothing() -> None:
    inner = Inner()
    transport = CorkedTransport(inner, asyncio.get_running_loop())
    transport.write(b"a")
    transport.write(b"x" * AT_ONCE)
    assert inner.sent == [b"a" + b"x" * AT_ONCE]
    await asyncio.sleep(0)
    assert len(inner.sent) == 1


async def test_a_close_sends_first_and_an_abort_does_not() -> None:
    closed, aborted = Inner(), Inner()
    for inner, end in ((closed, CorkedTransport.close), (aborted, CorkedTransport.abort)):
        transport = CorkedTransport(inner, asyncio.get_running_loop())
        transport.write(b"last")
        end(transport)
        await asyncio.sleep(0)
    assert (closed.sent, aborted.sent) == ([b"last", None], [None])


@given(rounds=st.lists(st.lists(st.binary(max_size=40), max_size=5), max_size=8))
def test_nothing_is_lost_or_out_of_order(rounds: list[list[bytes]]) -> None:
    inner = Inner()

    async def write() -> None:
        transport = CorkedTransport(inner, asyncio.get_running_loop())
        for pieces in rounds:
            for piece in pieces:
                transport.write(piece)
            await asyncio.sleep(0)

    asyncio.run(write())
    assert [piece for piece in inner.sent if piece] == [b"".join(pieces) for pieces in rounds if b"".join(pieces)]
