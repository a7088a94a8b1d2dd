"""A steady stream of requests, each sent when it is due, and the duration of each."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence

CONNECTIONS = 64


class Connection(asyncio.Protocol):
    """A keep-alive connection with one request at a time. After each response, `seconds` gets the request's duration
    and `done` the connection.
    """

    def __init__(self, done: asyncio.Queue[Connection], seconds: list[float]) -> None:
        self._done = done
        self._seconds = seconds
        self._data = b""
        self.failures = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def ask(self, request: bytes, due: float) -> None:
        """Send a request. Its duration counts from `due`, the time at which it should have been sent."""
        self._due = due
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._data[:end].lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self._data) < end + 4 + length:
            return
        self._seconds.append(time.perf_counter() - self._due)
        self.failures += not self._data.startswith(b"HTTP/1.1 200 ")
        self._data = b""
        self._done.put_nowait(self)


def requests(count: int, headers: Sequence[bytes]) -> list[bytes]:
    """Return different chat requests as bytes: eight system prompts of 2 KiB, each with a question. `headers`: an
    Authorization header for each key, used in turn; none if empty.
    """
    made, rng = [], random.Random(11)
    systems = ["".join(rng.choices("abcdefgh ", k=2048)) for _ in range(8)]
    for number in range(count):
        messages = [
            {"role": "system", "content": systems[number % len(systems)]},
            {"role": "user", "content": f"question {rng.random()}"},
        ]
        body = json.dumps({"model": "m", "messages": messages, "max_tokens": 128}).encode()
        made.append(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"user-agent: OpenAI/Python 2.0\r\naccept: application/json\r\naccept-encoding: gzip, deflate\r\n"
            + (headers[number % len(headers)] if headers else b"")
            + b"content-length: %d\r\n\r\n" % len(body)
            + body
        )
    return made


async def steady(port: int, rate: float, wanted: Sequence[bytes]) -> tuple[list[float], int]:
    """Send requests at random times with a mean of `rate` per second. Return the seconds from each request's due time
    to its response, and the number of responses other than 200.
    """
    loop = asyncio.get_running_loop()
    free: asyncio.Queue[Connection] = asyncio.Queue()
    seconds: list[float] = []
    made = [
        await loop.create_connection(lambda: Connection(free, seconds), "127.0.0.1", port) for _ in range(CONNECTIONS)
    ]
    for _, connection in made:
        free.put_nowait(connection)
    rng, due = random.Random(3), time.perf_counter()
    for request in wanted:
        due += rng.expovariate(rate)
        if (left := due - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        (await free.get()).ask(request, due)
    while len(seconds) < len(wanted):
        await free.get()
    for transport, _ in made:
        transport.close()
    return seconds, sum(connection.failures for _, connection in made)
