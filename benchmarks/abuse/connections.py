"""`python -m abuse.connections`: attacks on the gateway's connections, with and without its guard.

Each attack has a gateway of its own under the chart's memory limit. The gateway stands if the kernel kills nothing, a
probe is answered during the attack, and no connection is held for longer than the gateway's time limits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from abuse import gateway
from abuse.backend import Backend
from abuse.clients import HEAD
from abuse.group import memory_group
from abuse.limits import chart_limit
from provenance import provenance

HELD_SECONDS = 75.0
"""By then the gateway must have closed the connections of clients that neither send nor read."""
READ_SECONDS = 30.0
"""Time for a client to read what its socket still holds, and then the end of the connection."""
PROBE_SECONDS = 10.0
LARGE_HEAD = b"GET /live HTTP/1.1\r\nhost: x\r\nx-filler: " + b"y" * (60 << 10) + b"\r\n\r\n"
PROBE = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
MIB = 1 << 20
Attack = Callable[[int], Awaitable[bool]]
"""Attacks the gateway at a port; True if the gateway stands."""


async def idle_connections(port: int, count: int = 8000) -> bool:
    """Open `count` connections, send one request with a head of 60 KiB on each, and keep them open."""
    held = []
    for _ in range(count):
        held.append(await _opened(port, LARGE_HEAD))
        if len(held) % 100 == 0:
            await asyncio.sleep(0.2)
    return await _stands(port, held)


async def half_heads(port: int, count: int = 1000) -> bool:
    """Send the beginning of `count` heads."""
    held = [await _opened(port, b"GET / HTTP/1.1\r\nhost: x\r\nx-") for _ in range(count)]
    return await _stands(port, held) and await _ended(held)


async def never_reading(port: int, count: int = 500) -> bool:
    """Ask for `count` answers without end and read nothing of them."""
    body = b'{"model": "flood"}'
    held = [await _opened(port, HEAD + b"content-length: %d\r\n\r\n" % len(body) + body) for _ in range(count)]
    for one in held:
        one.transport.pause_reading()
    return await _stands(port, held) and await _ended(held)


async def sent_ahead(port: int, count: int = 30, requests: int = 10_000) -> bool:
    """On each of `count` connections, send `requests` requests behind one whose answer does not begin."""
    body = b'{"model": "wait"}'
    first = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    held = [await _opened(port, first + b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n" * requests) for _ in range(count)]
    return await _stands(port, held)


async def long_heads(port: int, count: int = 60, size: int = 10 * MIB) -> bool:
    """Send `count` headers of `size` bytes."""
    held = [await _opened(port, b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * size) for _ in range(count)]
    return await _stands(port, held)


async def long_trailers(port: int, count: int = 60, size: int = 10 * MIB) -> bool:
    """Send `count` trailers of `size` bytes."""
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx: "
    held = [await _opened(port, head + b"y" * size) for _ in range(count)]
    return await _stands(port, held)


ATTACKS: dict[str, Attack] = {
    each.__name__: each for each in (idle_connections, half_heads, never_reading, sent_ahead, long_heads, long_trailers)
}


async def _stands(port: int, held: list[Held]) -> bool:
    """Whether a probe is answered while the connections are open."""
    await asyncio.sleep(5)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(PROBE)
            answer = await reader.read()
            writer.close()
    except (OSError, TimeoutError):
        return False
    assert held
    return answer.startswith(b"HTTP/1.1 200 ")


async def _ended(held: list[Held]) -> bool:
    """Whether the gateway has closed all of the connections in time."""
    await asyncio.sleep(HELD_SECONDS)
    for one in held:
        one.transport.resume_reading()
    _, held_on = await asyncio.wait([one.ended for one in held], timeout=READ_SECONDS)
    return not held_on


class Held(asyncio.Protocol):
    """A client's connection that ignores what it receives."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        """It is not any more."""
        self.ended.set_result(None)


async def _opened(port: int, sent: bytes) -> Held:
    _, held = await asyncio.get_running_loop().create_connection(Held, "127.0.0.1", port)
    held.transport.write(sent)
    return held


async def tried(attack: Attack, port: int, *, guarded: bool) -> dict[str, Any]:
    """The outcome of one attack on a new gateway."""
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
