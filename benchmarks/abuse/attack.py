"""Attacks on a gateway.

As a program (`python -m abuse.attack PORT`) it keeps unfinished requests open and repeats two attacks until it is
killed. It has a process of its own, so that it does not delay the client that measures latency.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from abuse.clients import LARGE, ask, begin, bombs, half, padded

ABREAST = 6
EACH = 3
HALVES = 500
HALF_HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-"
HALF_BODY = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + b"[" * 10_000
GONE = 0  # a connection that was closed without a response


async def throw_bombs(port: int, model: str = "ok") -> Counter[int]:
    """Send each body of `bombs(model)` EACH times as a completion request, at most ABREAST at once. Return the number
    of responses by status; GONE counts connections that closed without a response.
    """
    return await _abreast([partial(ask, port, body) for body in bombs(model).values() for _ in range(EACH)])


async def hang_up(port: int, count: int = 200) -> Counter[int]:
    """Start `count` streams with bodies of 1 MiB, and disconnect from each after the response's head. Return the number
    of responses by status, GONE included.
    """
    body = padded("stream", 1 << 20)
    return await _abreast([partial(ask, port, body)] * count)


async def crowd(port: int, count: int = 40) -> list[asyncio.Task[int]]:
    """Start `count` requests of the largest size to the model `wait`, which delays its responses. Return a task for
    each; its result is the response's status, or GONE.
    """
    body = padded("wait", LARGE)
    return [asyncio.create_task(_or_gone(ask(port, body))) for _ in range(count)]


async def dawdle(port: int) -> list[asyncio.StreamWriter]:
    """Open HALVES connections with half a request head each and as many with half a body; return them."""
    return [await half(port, sent) for sent in (HALF_HEAD, HALF_BODY) for _ in range(HALVES)]


async def _abreast(calls: list[Callable[[], Awaitable[int]]]) -> Counter[int]:
    limit = asyncio.Semaphore(ABREAST)
    statuses: Counter[int] = Counter()

    async def one(call: Callable[[], Awaitable[int]]) -> None:
        async with limit:
            statuses[await _or_gone(call())] += 1

    await asyncio.gather(*map(one, calls))
    return statuses


async def _or_gone(call: Awaitable[int]) -> int:
    try:
        return await call
    except (OSError, asyncio.IncompleteReadError):
        return GONE


async def _for_ever(port: int) -> None:
    held = await dawdle(port)
    waiting = [await begin(port, padded("stream", 1 << 16))]
    while held and waiting:
        await throw_bombs(port)
        await hang_up(port, 50)


if __name__ == "__main__":
    asyncio.run(_for_ever(int(sys.argv[1])))
