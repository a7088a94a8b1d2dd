"""A replica that answers immediately, so that the remaining cost is the gateway's.

`python -m gateway.backend CORE` runs it on this CPU core and prints its port.
"""

from __future__ import annotations

import asyncio
import os
import sys

ANSWER = b'{"id": "x", "object": "chat.completion", "choices": [], "usage": {"total_tokens": 400}}'
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-plimsoll-tenant: believed\r\n"
    b"x-plimsoll-load: running=1, waiting=0, slots=512, kv=0.10\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)
)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b"c\r\ndata: {}\n\n\r\n\r\n"


class NullReplica(asyncio.Protocol):
    """Reads requests with a length, and answers each with the same bytes; a streaming request gets the start of a
    stream.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self._data) < end + 4 + length:
                return
            body, self._data = self._data[end + 4 : end + 4 + length], self._data[end + 4 + length :]
            self._transport.write(STREAM + EVENT if b'"stream": true' in body else HEAD + ANSWER)


async def main(core: int) -> None:
    """Serve until the process is ended."""
    os.sched_setaffinity(0, {core})
    server = await asyncio.get_running_loop().create_server(NullReplica, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
