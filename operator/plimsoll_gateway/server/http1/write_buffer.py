"""A transport that collects the writes of one round of the event loop, and ends a connection that stalls.

The server writes the head of a response, and then its first piece. Sent one by one each is a system call and a packet,
and a system call is the dearest part of a small response.
"""

from __future__ import annotations

import asyncio
from typing import Any

STALL_SECONDS = 60.0


class StallWatch:
    """Ends a connection whose client takes nothing of what waits for it within a time; one that reads slowly stays."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = 0  # bytes, when it was looked last

    def begin(self) -> None:
        """Watch while bytes wait, if any do."""
        if self._timer is None:
            self._look_again()

    def end(self) -> None:
        """The client has taken what there was, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() < self._waiting:
            self._look_again()
        else:
            self._transport.abort()

    def _look_again(self) -> None:
        self._waiting = self._transport.get_write_buffer_size()
        if self._waiting:
            self._timer = self._loop.call_later(STALL_SECONDS, self._look)


AT_ONCE = 64 << 10  # bytes that wait for nothing more


class CorkedTransport(asyncio.Transport):
    """What uvicorn asks of a transport, in front of another one."""

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._inner = inner
        self._loop = loop
        self.stall = StallWatch(inner, loop)
        self._held: list[bytes] = []
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send with what else is written in this round."""
        if not data:
            return
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(bytes(data))
        self._size += len(data)
        if self._size >= AT_ONCE:
            self.flush()

    def hold(self, data: bytes) -> None:
        """Send with what is written next, which follows without a wait."""
        self._held.append(data)
        self._size += len(data)

    def flush(self) -> None:
        """Send what is held."""
        if self._held:
            data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
            self._held.clear()
            self._size = 0
            self._inner.write(data)

    def close(self) -> None:
        """Send what is held, and close once it is gone, or its client takes nothing of it for too long."""
        self.flush()
        self._inner.close()
        self.stall.begin()

    def abort(self) -> None:
        """Close now."""
        self._held.clear()
        self._inner.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._inner.is_closing()

    def pause_reading(self) -> None:
        """Take nothing more from the client."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Take more again."""
        self._inner.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the other one knows."""
        return self._inner.get_extra_info(name, default)
