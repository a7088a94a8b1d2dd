"""The gateway under its chart's memory limit, with abusive clients: it is not killed, and other clients are served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from abuse import attack, connections, gateway
from abuse.backend import EVENT, Backend
from abuse.clients import Stream, ask, begin
from abuse.group import MemoryGroup, NoGroupError, memory_group
from abuse.limits import chart_limit

STREAMS = 2000
ABREAST = 100
SMALL = b'{"model": "ok", "prompt": "Hi"}'


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    try:
        with memory_group(chart_limit("gateway")) as made:
            yield made
    except NoGroupError as reason:
        pytest.skip(str(reason))


@pytest.mark.long
async def test_abuse_kills_nothing_and_stops_nobody(group: MemoryGroup, tmp_path: Path, unused_tcp_port: int) -> None:
    gateway.raise_open_files()
    backend, port = Backend(), unused_tcp_port
    async with (
        backend.running(),
        gateway.running(group, backend.ports, tmp_path, port) as process,
        opened(port) as streams,
        asyncio.TaskGroup() as tasks,
    ):
        asking = tasks.create_task(ask_on(port))
        dawdlers = await attack.dawdle(port)
        bombs = await attack.throw_bombs(port)
        hung_up = [await attack.hang_up(port) for _ in range(3)]
        crowd = await attack.crowd(port)
        bombs_in_the_crowd = await attack.throw_bombs(port)
        backend.release()
        in_the_crowd = await asyncio.gather(*crowd)
        backend.say()
        for stream in streams:
            assert await stream.reader.readexactly(2 * len(EVENT)) == 2 * EVENT
        for writer in dawdlers:
            writer.close()
        assert not asking.done()
        asking.cancel()
        assert process.returncode is None
    assert group.kills == 0
    print(f"peak {group.peak / 2**20:.0f} MiB, {bombs=}, {bombs_in_the_crowd=}, {hung_up=}")
    assert set(bombs) <= {200, 400, 413, 503}
    assert {200, 400, 413} <= set(bombs)
    assert all(statuses == {200: 200} for statuses in hung_up)
    assert set(in_the_crowd) == {200, 503}


@contextlib.asynccontextmanager
async def opened(port: int) -> AsyncIterator[list[Stream]]:
    """Open streams that stay open."""
    limit = asyncio.Semaphore(ABREAST)

    async def one() -> Stream:
        async with limit:
            return await begin(port, b'{"model": "stream"}')

    streams = await asyncio.gather(*(one() for _ in range(STREAMS)))
    assert {stream.status for stream in streams} == {200}
    try:
        yield streams
    finally:
        for stream in streams:
            stream.close()


async def ask_on(port: int) -> None:
    """Send small requests one after the other; each must be answered."""
    while True:
        assert await ask(port, SMALL) == 200


@pytest.mark.long
@pytest.mark.parametrize(
    "attacks",
    [
        (connections.idle_connections,),
        (connections.half_heads, partial(connections.never_reading, count=100)),  # 500 fill a busy machine for minutes
        (connections.sent_ahead,),
        (connections.long_heads,),
        (connections.long_trailers,),
    ],
)
async def test_no_attack_on_connections_succeeds(
    group: MemoryGroup, tmp_path: Path, unused_tcp_port: int, attacks: tuple[connections.Attack, ...]
) -> None:
    """Each attack succeeds on uvicorn's protocol alone (`python -m abuse.connections`)."""
    gateway.raise_open_files()
    backend, port = Backend(), unused_tcp_port
    async with backend.running(), gateway.running(group, backend.ports, tmp_path, port) as process:
        assert all(await asyncio.gather(*(attack(port) for attack in attacks)))
        assert process.returncode is None
    assert group.kills == 0
