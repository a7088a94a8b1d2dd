"""Helpers for requests in flight: cancel work whose client has disconnected, run long work in a thread, wait for the
first of several tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.types import Receive

ResultT = TypeVar("ResultT")

CLIENT_GONE = 499
"""Status in logs and metrics of a request whose client closed its connection, as in nginx."""


class ClientGoneError(Exception):
    """The client closed its connection before it had the response."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return the result of `work`, which is cancelled when the client disconnects (ClientGoneError).

    `receive` is that of a request whose body has been read.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


SHORT_BODY = 2048
"""Size up to which a body is processed on the event loop: about a millisecond of decoding, rendering and tokenising,
less than a switch to a thread may take. No field is longer than its body, so fields need no check of their own."""

LONG_BODY = 2**20
"""Size above which decoding a body may take many MiB: 7 MiB of token ids took 112 MiB."""


_one_by_one = ThreadPoolExecutor(1, thread_name_prefix="long-bodies")


async def offload(size: int, work: Callable[[], ResultT]) -> ResultT:
    """Return the result of `work`, which runs in a thread if it processes more than `SHORT_BODY` bytes (`size`).

    Such work must not change anything that the event loop uses. Cancelling drops work that has not started, and the
    result of work that has.

    Decoding takes up to twenty times a body's size. So long bodies (`LONG_BODY`) share one thread, in the order of
    their arrival, and only one of them is decoded at a time.
    """
    if size <= SHORT_BODY:
        return work()
    thread = _one_by_one if size > LONG_BODY else None
    return await asyncio.get_running_loop().run_in_executor(thread, work)


async def first(*awaitables: object) -> None:
    """Return when the first awaitable is done. Other coroutines are cancelled, tasks continue."""
    own = [asyncio.ensure_future(a) for a in awaitables if asyncio.iscoroutine(a)]
    tasks = [a for a in awaitables if isinstance(a, asyncio.Task)]
    try:
        await asyncio.wait({*own, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in own:
            task.cancel()
