from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from local_support.fake_gateway import FakeGateway, delta, events, fake_gateway

from plimsoll_runtime.local.chat.conversation import AskError, Server
from plimsoll_runtime.local.run import ask


@pytest.fixture
async def gateway(unused_tcp_port: int) -> AsyncIterator[FakeGateway]:
    async with fake_gateway(unused_tcp_port) as made:
        yield made


async def put(gateway: FakeGateway, key: str | None = None) -> str:
    pieces: list[str] = []
    async with aiohttp.ClientSession() as session:
        await ask(session, Server(gateway.url, key), "org/m", "Why?", pieces.append)
    return "".join(pieces)


async def test_the_answer_comes_in_pieces(gateway: FakeGateway) -> None:
    gateway.unready = 2
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
    gateway.answer = events(delta(None), delta("Be"), delta("cause ü."), usage, "[DONE]")
    assert await put(gateway, "secret") == "Because ü."
    ((body, key),) = gateway.requests
    assert body["model"] == "org/m"
    assert body["messages"] == [{"role": "user", "content": "Why?"}]
    assert body["stream"] is True
    assert key == "Bearer secret"


async def test_no_key_is_sent_where_there_is_none(gateway: FakeGateway) -> None:
    gateway.answer = events("[DONE]")
    assert await put(gateway) == ""
    assert gateway.requests[0][1] is None


async def test_answers_that_fail_say_why(gateway: FakeGateway) -> None:
    gateway.answer = events(delta("Be"), json.dumps({"error": {"message": "its replica went away"}}))
    with pytest.raises(AskError, match="its replica went away"):
        await put(gateway)
    gateway.answer = events(delta("Be"))
    with pytest.raises(AskError, match="ended before the output was complete"):
        await put(gateway)

    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no key"}}, status=401)

    gateway.answer = refuse
    with pytest.raises(AskError, match="no key"):
        await put(gateway)

    async def plain(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500, text="oops")

    gateway.answer = plain
    with pytest.raises(AskError, match="oops"):
        await put(gateway)


async def test_a_gateway_that_never_finds_the_model(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.unready = 1_000_000
    monkeypatch.setattr("plimsoll_runtime.local.run.ROUTE_SECONDS", 0.05)
    with pytest.raises(AskError, match="did not report the model as ready"):
        await put(gateway)


async def test_a_connection_that_breaks(gateway: FakeGateway) -> None:
    async def die(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        await asyncio.Event().wait()
        return web.Response()

    gateway.answer = die
    with pytest.raises(AskError, match=r"the connection to http.* failed"):
        await put(gateway)
