"""Abusive requests, each kind limited in number, size and time."""

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
"""Time after which the sender of an incomplete request gives up."""
HELD = "held"
"""Result of an incomplete request that the server has not ended within HELD_SECONDS."""
SIZES = (30 * MIB, 7 * MIB)
"""Sizes of bodies: one above the gateway's limit, one below."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where abusive requests go: `host` and `port` of the ingress or of the gateway's Service. `name` is the Host
    header, `model` a served name.
    """

    host: str
    port: int
    name: str
    model: str

    @property
    def url(self) -> str:
        """URL of completions."""
        return f"http://{self.host}:{self.port}/v1/completions"


Abuse = Callable[[Target, int], Coroutine[Any, Any, Counter[str]]]
"""Sends `count` requests. Returns the number of each result: an HTTP status, a connection error, "closed" or HELD."""


async def arrays_in_arrays(target: Target, count: int) -> Counter[str]:
    """Send text that would take thirty times its size as Python objects."""
    return await _bodies(target, count, lambda size: b"[" + b"[0]," * (size // 4) + b"[0]]")


async def deep_arrays(target: Target, count: int) -> Counter[str]:
    """Send millions of nested brackets."""
    return await _bodies(target, count, lambda size: b"[" * (size // 2) + b"]" * (size // 2))


async def token_ids(target: Target, count: int) -> Counter[str]:
    """Send a valid prompt of millions of tokens, far above any model's limit."""
    return await _bodies(target, count, lambda size: b"[" + b"5," * (size // 2) + b"5]")


async def many_keys(target: Target, count: int) -> Counter[str]:
    """Send a prompt that is an object with very many keys."""
    return await _bodies(
        target, count, lambda size: b"{" + b",".join(b'"k%07d":0' % n for n in range(size // 13)) + b"}"
    )


async def cancelled_streams(target: Target, count: int) -> Counter[str]:
    """Send streaming requests with a body of 1 MiB, and disconnect after their first bytes."""
    body = b'{"model":"%s","stream":true,"max_tokens":64,"ignore_eos":true,"prompt":"w5 w6"%s}'
    content = body % (target.model.encode(), b" " * MIB)

    async def ask(client: httpx.AsyncClient) -> str:
        async with client.stream("POST", target.url, content=content, headers=_headers(target)) as answer:
            await anext(answer.aiter_raw(), b"")
            return str(answer.status_code)

    return await _many(count, ask, at_once=16)


async def half_bodies(target: Target, count: int) -> Counter[str]:
    """Send bodies that stop after two thirds of their length."""
    beginnings = []
    for size in SIZES:
        head = _head(target, b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % size)
        beginnings.append(head + b'{"model":"' + b"x" * (size * 2 // 3))
    return await _stalled(target, count, beginnings)


async def half_headers(target: Target, count: int) -> Counter[str]:
    """Send requests whose headers never end."""
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
    """Send complete requests, all at once. `prompt(size)` returns the JSON of their prompt; `size` alternates over
    SIZES.
    """
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
    """Open connections that each send the start of a request (`beginnings` in turn) and then nothing. Return the number
    of each result.
    """

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
