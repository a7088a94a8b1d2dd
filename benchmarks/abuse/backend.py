"""Fake replicas, one for each model: `ok` answers immediately, `stream` sends one event and keeps the stream open,
`wait` answers after `Backend.release`, and `flood` sends an endless response. All answer GET immediately.

As a program (`python -m abuse.backend`) it prints its ports as JSON and runs until it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

OK = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{"ok": true}'
EVENT = b"a\r\ndata: {}\n\n\r\n"
BEGIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FLOOD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"
PIECE = 1 << 20


class Backend:
    """The fake replicas. `ports`: name of the model -> port of its replica."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.arrived = 0
        self._streams: set[asyncio.StreamWriter] = set()
        self._release = asyncio.Event()

    def say(self) -> None:
        """Send one more event in each open stream."""
        for writer in self._streams:
            writer.write(EVENT)

    def release(self) -> None:
        """Let the model `wait` answer: waiting requests now, later ones immediately."""
        self._release.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve within the context."""
        tasks: set[asyncio.Task[None]] = set()
        async with contextlib.AsyncExitStack() as stack:
            for model in ("ok", "stream", "wait", "flood"):

                def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, model: str = model) -> None:
                    task = asyncio.get_running_loop().create_task(self._serve(model, reader, writer))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)

                server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=2048)
                stack.callback(server.close)
                self.ports[model] = server.sockets[0].getsockname()[1]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, model: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                left = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                while left:
                    left -= len(await reader.readexactly(min(left, PIECE)))
                if model == "flood" and not head.startswith(b"get "):
                    writer.write(FLOOD)
                    while True:
                        writer.write(bytes(PIECE))
                        await writer.drain()
                if model != "stream" or head.startswith(b"get "):
                    if model == "wait" and not head.startswith(b"get "):
                        self.arrived += 1
                        await self._release.wait()
                    writer.write(OK)
                    continue
                self._streams.add(writer)
                writer.write(BEGIN + EVENT)
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._streams.discard(writer)
            writer.close()


async def _for_ever() -> None:
    backend = Backend()
    async with backend.running():
        print(json.dumps(backend.ports), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_for_ever())
