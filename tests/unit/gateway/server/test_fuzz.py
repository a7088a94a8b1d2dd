"""Random malformed requests over raw sockets: each gets a 4xx response, and nothing breaks."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, World

REQUESTS = 500
ABREAST = 20
PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/tokenize",
    "/v1/models",
    "/v1/models/%ff%fe",
    "/health",
    "/metrics",
    "/",
    "/../../etc/passwd",
    "//",
    "/v1/models/" + "x" * 3000,
    "http://elsewhere/v1/models",
    "*",
    "/v1/completions?%00=%ff&\x80",
]
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "CONNECT", "TRACE", "post", "P ST", ""]
BODIES = [
    b"",
    b"{",
    b"[]",
    b'{"model": 1}',
    b'{"model": "nobody"}',
    b'{"model": "m", "model": "m"}',
    b'{"model": "' + b"x" * 5000 + b'"}',
    b'{"model": "\\ud800"}',
    b'{"model": "\\u0000"}',
    b"\x00\xff" * 50,
    b"[" * 50_000,
    b'{"model": 1e999999}',
    b'{"model": {"model": "m"}}',
]
HEADERS = [
    "content-type: application/json",
    "content-type: text/plain; charset=utf-16",
    "content-length: -1",
    "content-length: 5, 6",
    "content-length: 99999999999999999999",
    "transfer-encoding: chunked",
    "transfer-encoding: gzip",
    "transfer-encoding: identity",
    "content-encoding: br",
    "connection: close, x-a",
    "connection: upgrade\r\nupgrade: websocket",
    "expect: 100-continue",
    "x-request-id: " + "y" * 200,
    "host: a\r\nhost: b",
    " folded: header",
    "no colon here",
    "x: \x00",
    "x: " + "z" * 70_000,
]


def make(rng: random.Random) -> bytes:
    """Return one request with one or several errors."""
    body = rng.choice(BODIES)
    headers = rng.sample(HEADERS, rng.choice([0, 0, 0, 1, 1, 2]))
    if rng.random() < 0.9:
        headers.append(f"content-length: {len(body)}")
    version = rng.choice(["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTQ/1.1"])
    lines = [f"{rng.choice(METHODS)} {rng.choice(PATHS)} {version}", "host: gateway", *headers]
    raw = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
    if rng.random() < 0.2:
        raw = bytes(byte ^ (1 << rng.randrange(8)) if rng.random() < 0.02 else byte for byte in raw)
    return raw[: rng.randrange(1, len(raw))] if rng.random() < 0.1 else raw


async def exchange(port: int, raw: bytes) -> bytes:
    """Send, half-close, and read to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        await writer.drain()
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_malformed_requests(world: World, ok: Behaviour) -> None:
    await world.model(ok)
    port = int(world.url.rpartition(":")[2])
    rng = random.Random(270)
    limit = asyncio.Semaphore(ABREAST)
    statuses: dict[int, int] = {}

    async def one(raw: bytes) -> None:
        async with limit, asyncio.timeout(60):
            answer = await exchange(port, raw)
        if answer:
            status = int(answer.split(b" ", 2)[1])
            statuses[status] = statuses.get(status, 0) + 1
            assert status < 500, (raw[:300], answer[:300])
            if status >= 400 and b"application/json" in answer and not raw.startswith(b"HEAD"):
                assert b'"error"' in answer

    async with asyncio.TaskGroup() as group:
        for _ in range(REQUESTS):
            group.create_task(one(make(rng)))
    assert sum(statuses.values()) > REQUESTS * 0.8
    assert {400, 404, 405} <= set(statuses)
    async with world.post() as response:
        assert response.status == 200
    assert await world.metric('plimsoll_gateway_requests_in_flight{model="m",namespace="ns"}') == 0
