"""Keep-alive comments: after some time, a waiting streaming request gets the headers of a stream, and then comments.

Proxies close idle connections, and clients treat long silence as a failure. Clients skip comments. The status has then
been sent, so that later errors are events of the stream.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

from plimsoll_gateway.proxy.response_stream import ResponseStream

COMMENT_SECONDS = 5.0
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
COMMENT = b": waiting for the model to be ready\n\n"


class KeepaliveComments:
    """Comments on one stream, from `after` seconds after `arm`, until `end` or the end of the context."""

    def __init__(self, stream: ResponseStream, after: float) -> None:
        self._stream = stream
        self._after = after
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    def arm(self) -> None:
        """Start the timer, unless it has been started before."""
        if self._timer is None and self._task is None and not self._over.is_set():
            self._timer = asyncio.get_running_loop().call_later(self._after, self._begin)

    async def end(self) -> None:
        """Stop the comments, and wait until the last one has been sent."""
        self._stop()
        if self._task is not None:
            task, self._task = self._task, None
            await task

    def _stop(self) -> None:
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        await self._stream.start(200, [*HEADERS, *self._stream.id_headers], events=True)
        while not self._over.is_set():
            await self._stream.push(COMMENT)
            with suppress(TimeoutError):
                async with asyncio.timeout(COMMENT_SECONDS):
                    await self._over.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
