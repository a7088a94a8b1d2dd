"""`python -m abuse.connections`: attacks on the gateway's connections, with and without its `ConnectionGuard`.

Each attack has a gateway of its own under the chart's memory limit. The gateway stands if the kernel kills nothing and
a probe is answered during the attack. Against half heads and clients that never read, it must also close their
connections within its time limits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from abuse import gateway
from abuse.backend import Backend
from abuse.clients import HEAD
from abuse.group import memory_group
from abuse.limits import chart_limit
from provenance import provenance

ENDED_SECONDS = 150
"""By then the gateway must have closed the connections of clients that neither send nor read: its own limits are 20 s
for a head and 60 s for a client that reads nothing, the rest is for a busy machine."""
PROBE_SECONDS = 30.0
LARGE_HEAD = b"GET /live HTTP/1.1\r\nhost: x\r\nx-filler: " + b"y" * (60 << 10) + b"\r\n\r\n"
PROBE = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
MIB = 1 << 20
RECEIVE_BYTES = 4096
"""Size of a client's receive buffer, so small that a gateway fills it immediately, also on a busy machine."""
ESTABLISHED = "01"
"""State of an established connection in /proc/net/tcp."""
Attack = Callable[[int], Awaitable[bool]]
"""Attacks the gateway at a port; True if the gateway stands."""


async def idle_connections(port: int, count: int = 8000) -> bool:
    """Open `count` connections, send one request with a head of 60 KiB on each, and keep them open. Return whether a
    probe is answered meanwhile.
    """
    async with AsyncExitStack() as held:
        for number in range(count):
            await held.enter_async_context(opened(port, LARGE_HEAD))
            if number % 100 == 0:
                await asyncio.sleep(0.2)
        return await _stands(port)


async def half_heads(port: int, count: int = 1000) -> bool:
    """Open `count` connections, each with the beginning of a request head. Return whether a probe is answered and all
    connections are closed in time.
    """
    async with many(port, count, b"GET / HTTP/1.1\r\nhost: x\r\nx-") as held:
        return await _stands(port) and await _ended(port, held)


async def never_reading(port: int, count: int = 500) -> bool:
    """Request `count` endless responses and read none of them. Return whether a probe is answered and all connections
    are closed in time.
    """
    body = b'{"model": "flood"}'
    async with many(port, count, HEAD + b"content-length: %d\r\n\r\n" % len(body) + body) as held:
        for one in held:
            one.transport.pause_reading()
        return await _stands(port) and await _ended(port, held)


async def sent_ahead(port: int, count: int = 30, requests: int = 10_000) -> bool:
    """On each of `count` connections, pipeline `requests` requests behind one whose response does not start. Return
    whether a probe is answered meanwhile.
    """
    body = b'{"model": "wait"}'
    first = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    async with many(port, count, first + b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n" * requests):
        return await _stands(port)


async def long_heads(port: int, count: int = 60, size: int = 10 * MIB) -> bool:
    """On each of `count` connections, send an unfinished header of `size` bytes. Return whether a probe is answered
    meanwhile.
    """
    async with many(port, count, b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * size):
        return await _stands(port)


async def long_trailers(port: int, count: int = 60, size: int = 10 * MIB) -> bool:
    """On each of `count` connections, send a chunked body with an unfinished trailer of `size` bytes. Return whether a
    probe is answered meanwhile.
    """
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx: "
    async with many(port, count, head + b"y" * size):
        return await _stands(port)


ATTACKS: dict[str, Attack] = {
    each.__name__: each for each in (idle_connections, half_heads, never_reading, sent_ahead, long_heads, long_trailers)
}


async def _stands(port: int) -> bool:
    """Return whether the gateway answers a probe with 200, five seconds after the attack's connections were opened."""
    await asyncio.sleep(5)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(PROBE)
            answer = await reader.read()
            writer.close()
    except (OSError, TimeoutError):
        return False
    return answer.startswith(b"HTTP/1.1 200 ")


async def _ended(port: int, held: list[Held]) -> bool:
    """Return whether the gateway closes all of the connections within ENDED_SECONDS.

    The kernel's table of sockets shows the gateway's side. A client that reads nothing cannot see that its connection
    is closed, and reading all that its socket holds takes longer on a busy machine.
    """
    clients = {one.port for one in held}
    for _ in range(ENDED_SECONDS):
        if not clients & _peers(port):
            return True
        await asyncio.sleep(1)
    return False


def _peers(port: int) -> set[int]:
    """Return the client's port of each established IPv4 connection to the server port `port` of this machine."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    ends = ([int(end.rpartition(":")[2], 16) for end in row[1:3]] for row in rows if row[3] == ESTABLISHED)
    return {client for own, client in ends if own == port}


class Held(asyncio.Protocol):
    """A client connection that ignores what it receives."""

    transport: asyncio.Transport
    port: int
    """Port of the client's end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport  # type: ignore[assignment]
        self.port = self.transport.get_extra_info("sockname")[1]


@asynccontextmanager
async def opened(port: int, sent: bytes) -> AsyncIterator[Held]:
    """Open a connection, send `sent` on it, and abort it at the end of the context."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setblocking(False)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    await loop.sock_connect(client, ("127.0.0.1", port))
    _, held = await loop.create_connection(Held, sock=client)
    try:
        held.transport.write(sent)
        yield held
    finally:
        held.transport.abort()


@asynccontextmanager
async def many(port: int, count: int, sent: bytes) -> AsyncIterator[list[Held]]:
    """Open `count` connections and send `sent` on each; abort them at the end of the context."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(port, sent)) for _ in range(count)]


async def tried(attack: Attack, port: int, *, guarded: bool) -> dict[str, Any]:
    """Run one attack on a new gateway. Return whether the gateway stood (`stands`), how many processes the kernel
    killed (`kills`), and the peak memory (`peak_mib`). Without `guarded`, the gateway uses uvicorn's protocol without
    the guard.
    """
    backend = Backend()
    with tempfile.TemporaryDirectory() as folder, memory_group(chart_limit("gateway")) as group:
        program = ("plimsoll_gateway",) if guarded else ("gateway.other", "unguarded", "--")
        async with backend.running(), gateway.running(group, backend.ports, Path(folder), port, program):
            try:
                nothing = await attack(port)
            except OSError:  # the gateway was killed
                nothing = False
        return {"stands": nothing and not group.kills, "kills": group.kills, "peak_mib": round(group.peak / MIB)}


async def _measure(port: int, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        kinds = {"as it is": True, "uvicorn alone": False}
        found[name] = {kind: await tried(ATTACKS[name], port, guarded=own) for kind, own in kinds.items()}
        print(name, json.dumps(found[name]), flush=True)
    return found


def main() -> int:
    """Run the attacks and print their outcomes; 0 if the gateway with its guard stands under all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", choices=ATTACKS, help="this attack (repeatable; all)")
    parser.add_argument("--port", type=int, default=18080, help="of the gateway (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    chosen = parser.parse_args()
    gateway.raise_open_files()
    found = asyncio.run(_measure(chosen.port, chosen.only or list(ATTACKS)))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"run": provenance(), "attacks": found}, indent=2) + "\n")
    return 0 if all(each["as it is"]["stands"] for each in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
