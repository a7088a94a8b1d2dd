"""Streams to clients that read slowly, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from operator_support.virtual_time import run

from plimsoll_runtime.api.http.sse import STALLED_SECONDS, EventStream
from plimsoll_runtime.api.telemetry.request_record import RequestRecord


class Number(msgspec.Struct, frozen=True, tag=True):
    number: int


class Client:
    """A client that takes a number of seconds for each message, and sends nothing."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = list(seconds)
        self.taken: list[bytes] = []
        self.closed_at: float | None = None

    async def send(self, message: Any) -> None:
        await asyncio.sleep(self._seconds.pop(0) if self._seconds else 0)
        self.taken.append(message.get("body", b""))

    async def receive(self) -> Any:
        return await asyncio.Event().wait()

    async def numbers(self, count: int) -> AsyncGenerator[msgspec.Struct, None]:
        try:
            for number in range(count):
                yield Number(number)
        finally:
            self.closed_at = asyncio.get_running_loop().time()


def stream(client: Client, count: int, path: str = "/v1/completions") -> tuple[RequestRecord, float]:
    """Return the record and the duration of a stream."""
    record, took = RequestRecord("r"), list[float]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        events = client.numbers(count)
        first = await anext(events)
        await EventStream(first, events, record)({"type": "http", "path": path}, client.receive, client.send)
        took.append(loop.time() - began)

    run(main())
    return record, took[0]


def test_a_client_that_takes_nothing_counts_as_gone() -> None:
    client = Client(0, 30, 10 * STALLED_SECONDS)
    record, seconds = stream(client, 10)
    assert seconds == pytest.approx(30 + STALLED_SECONDS)
    assert record.finish_reasons == ["disconnect"]
    assert client.closed_at is not None, "its source is closed: the model need not be kept awake"
    assert len(client.taken) == 2


def test_one_that_is_slow_gets_everything() -> None:
    client = Client(*[STALLED_SECONDS - 1] * 5)
    record, seconds = stream(client, 4)
    assert seconds == pytest.approx(5 * (STALLED_SECONDS - 1))
    assert client.taken[-1] == b"data: [DONE]\n\n"
    assert record.finish_reasons == []


def test_a_stream_is_named_and_ended_as_its_path_s_clients_expect() -> None:
    client = Client()
    stream(client, 2, "/v1/responses")
    assert client.taken[1:] == [b'event: Number\ndata: {"type":"Number","number":%d}\n\n' % n for n in (0, 1)] + [b""]
    client = Client()
    stream(client, 1)
    assert client.taken[1:] == [b'data: {"type":"Number","number":0}\n\n', b"data: [DONE]\n\n"]
