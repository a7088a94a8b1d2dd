"""The minimum cost of a relay on a Python event loop: two parsers, two connections, and unchanged bytes.

No keys, models, picking, errors, streams or limits: the gateway's additional cost is for these. python -m gateway.floor
asyncio|uvloop PORT REPLICA_PORT... (uvloop must be installed)
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator
from importlib import import_module

import httptools

Headers = list[tuple[bytes, bytes]]


class Half(asyncio.Protocol):
    """A connection of the relay, to a client or to a replica. Parses incoming messages and collects one at a time."""

    feed: Callable[[bytes], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.feed(data)

    def on_message_begin(self) -> None:
        self.headers: Headers = []
        self.body: list[bytes] = []
        self.url = b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def send(self, line: bytes, headers: Headers, body: list[bytes]) -> None:
        """Send a complete message in one write."""
        fields = b"".join(b"%s: %s\r\n" % field for field in headers)
        self.transport.write(line + fields + b"\r\n" + b"".join(body))


class Upper(Half):
    """The relay's connection to a replica: forwards each response to the client, and is in `idle` between requests."""

    def __init__(self, idle: list[Upper]) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.feed = self.parser.feed_data
        self.idle = idle
        self.lower: Lower | None = None

    def on_message_complete(self) -> None:
        """Send the replica's complete response to the client."""
        lower, self.lower = self.lower, None
        self.idle.append(self)
        assert lower is not None
        lower.send(b"HTTP/1.1 %d OK\r\n" % self.parser.get_status_code(), self.headers, self.body)


class Lower(Half):
    """The relay's connection from a client: forwards each request to the next replica."""

    def __init__(self, replicas: Iterator[tuple[int, list[Upper]]]) -> None:
        self.feed = httptools.HttpRequestParser(self).feed_data
        self.replicas = replicas
        self.opening: asyncio.Task[None] | None = None

    def on_message_complete(self) -> None:
        """Forward the client's complete request to the next replica; answer /health itself."""
        if self.url == b"/health":
            self.send(b"HTTP/1.1 200 OK\r\n", [(b"content-length", b"0")], [])
            return
        port, idle = next(self.replicas)
        if idle:
            self.pass_on(idle.pop())
        else:
            self.opening = asyncio.get_running_loop().create_task(self.open(port, idle))

    async def open(self, port: int, idle: list[Upper]) -> None:
        """Open a connection to the replica at `port`, and forward the request over it."""
        _, upper = await asyncio.get_running_loop().create_connection(lambda: Upper(idle), "127.0.0.1", port)
        self.pass_on(upper)

    def pass_on(self, upper: Upper) -> None:
        """Send the unchanged request over a connection to a replica."""
        upper.lower = self
        upper.send(b"POST %s HTTP/1.1\r\n" % self.url, self.headers, self.body)


async def main(port: int, replicas: list[int]) -> None:
    """Serve until the process is ended."""
    turns = itertools.cycle([(replica, list[Upper]()) for replica in replicas])
    server = await asyncio.get_running_loop().create_server(lambda: Lower(turns), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "uvloop":
        import_module("uvloop").install()
    asyncio.run(main(int(sys.argv[2]), [int(port) for port in sys.argv[3:]]))
