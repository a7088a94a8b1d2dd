"""Requests that nobody sends in good faith, each kind bounded in number, size and time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

MIB = 2**20
TIMEOUT = 90.0
HELD_SECONDS = 30.0
"""After this long the sender of a half request gives up."""
HELD = "held"
"""How a half request ends that nobody has ended by then."""
SIZES = (30 * MIB, 7 * MIB)
"""Of bodies: more than the gateway takes, and less."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send to. `host`, `port` and `name` (the Host header) reach the gateway; `model` is served there."""

    host: str
    port: int
    name: str
    model: str

    @property
    def url(self) -> str:
        """Of completions."""
        return f"http://{self.host}:{self.port}/v1/completions"


Abuse = Callable[[Target, int], Coroutine[Any, Any, Counter[str]]]
"""Sends so many requests and says how they ended: a status, or what the connection died of."""


async def arrays_in_arrays(target: Target, count: int) -> Counter[str]:
    """Text that would be thirty times its size as Python objects."""
    return await _bodies(target, count, lambda size: b"[" + b"[0]," * (size // 4) + b"[0]]")


async def deep_arrays(target: Target, count: int) -> Counter[str]:
    """Millions of brackets, one in the other."""
    return await _bodies(target, count, lambda size: b"[" * (size // 2) + b"]" * (size // 2))


async def token_ids(target: Target, count: int) -> Counter[str]:
    """A legal prompt of millions of tokens, far beyond what any model here takes."""
    return await _bodies(target, count, lambda size: b"[" + b"5," * (size // 2) + b"5]")


async def many_keys(target: Target, count: int) -> Counter[str]:
    """An object of very many keys beside the prompt."""
    return await _bodies(
        target, count, lambda size: b"{" + b",".join(b'"k%07d":0' % n for n in range(size // 13)) + b"}"
    )


async def cancelled_streams(target: Target, count: int) -> Counter[str]:
    """Streams with a body of 1 MiB, hung up on after their first bytes."""
    body = b'{"model":"%s","stream":true,"max_tokens":64,"ignore_eos":true,"prompt":"w5 w6"%s}'
    content = body % (target.model.encode(), b" " * MIB)

    async def ask(client: httpx.AsyncClient) -> str:
        async with client.stream("POST", target.url, content=content, headers=_headers(target)) as answer:
            await anext(answer.aiter_raw(), b"")
            return str(answer.status_code)

    return await _many(count, ask, at_once=16)


async def half_bodies(target: Target, count: int) -> Counter[str]:
    """Bodies that stop after two thirds of their length."""
    beginnings = []
    for size in SIZES:
        head = _head(target, b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % size)
        beginnings.append(head + b'{"model":"' + b"x" * (size * 2 // 3))
    return await _stalled(target, count, beginnings)


async def half_headers(target: Target, count: int) -> Counter[str]:
    """Requests whose headers never end."""
    return await _stalled(target, count, [_head(target, b"X-Slow: ")])


ALL: dict[str, Abuse] = {
    abuse.__name__: abuse
    for abuse in (
        arrays_in_arrays,
        deep_arrays,
        token_ids,
        many_keys,
        cancelled_streams,
        half_bodies,
        half_headers,
    )
}


async def _bodies(target: Target, count: int, prompt: Callable[[int], bytes]) -> Counter[str]:
    """Whole requests with this JSON as their prompt, all at once, of each size in turn."""
    head = b'{"model":"%s","max_tokens":1,"prompt":' % target.model.encode()
    contents = [head + prompt(size) + b"}" for size in SIZES]
    turns = itertools.cycle(contents)

    async def ask(client: httpx.AsyncClient) -> str:
        return str((await client.post(target.url, content=next(turns), headers=_headers(target))).status_code)

    return await _many(count, ask, at_once=count)


async def _many(count: int, ask: Callable[[httpx.AsyncClient], Awaitable[str]], *, at_once: int) -> Counter[str]:
    turns = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(timeout=TIMEOUT, limits=httpx.Limits(max_connections=at_once)) as client:

        async def one() -> str:
            async with turns:
                try:
                    return await ask(client)
                except httpx.HTTPError as error:
                    return type(error).__name__

        return Counter(await asyncio.gather(*(one() for _ in range(count))))


async def _stalled(target: Target, count: int, beginnings: Sequence[bytes]) -> Counter[str]:
    """Connections that send the beginning of a request, each in turn, and then nothing; how each of them ended."""

    async def one(beginning: bytes) -> str:
        reader, writer = await asyncio.open_connection(target.host, target.port)
        try:
            async with asyncio.timeout(HELD_SECONDS):
                writer.write(beginning)
                await writer.drain()
                line = (await reader.readline()).split()
                return line[1].decode() if len(line) > 1 else "closed"
        except TimeoutError:
            return HELD
        except OSError as error:
            return type(error).__name__
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    turns = itertools.islice(itertools.cycle(beginnings), count)
    return Counter(await asyncio.gather(*(one(beginning) for beginning in turns)))


def _headers(target: Target) -> dict[str, str]:
    return {"Host": target.name, "Content-Type": "application/json"}


def _head(target: Target, rest: bytes) -> bytes:
    return b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\n" % target.name.encode() + rest
