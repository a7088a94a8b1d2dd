"""What clients do to a gateway that they do not wish well; each attack tells the statuses that it was answered with.

As a program (`python -m abuse.attack PORT`) it goes on until it is ended; who measures then has a process of its own.
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
GONE = 0  # stands for a connection that was closed without an answer


async def throw_bombs(port: int, model: str = "ok") -> Counter[int]:
    """Each body that is dear to read, several at a time."""
    return await _abreast([partial(ask, port, body) for body in bombs(model).values() for _ in range(EACH)])


async def hang_up(port: int, count: int = 200) -> Counter[int]:
    """Streams with large prompts, left when they have begun."""
    body = padded("stream", 1 << 20)
    return await _abreast([partial(ask, port, body)] * count)


async def crowd(port: int, count: int = 40) -> list[asyncio.Task[int]]:
    """Prompts as large as they may be, for answers that do not begin; the tasks go on."""
    body = padded("wait", LARGE)
    return [asyncio.create_task(_or_gone(ask(port, body))) for _ in range(count)]


async def dawdle(port: int) -> list[asyncio.StreamWriter]:
    """Requests that begin and do not go on."""
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
