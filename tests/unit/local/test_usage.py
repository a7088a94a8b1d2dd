from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from plimsoll_runtime.api.server.state import ServerState
from plimsoll_runtime.api.telemetry.metrics import Metrics
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.local.processes.probes import IN_FLIGHT, LAST_REQUEST, TOKENS, Scrape, scrape
from plimsoll_runtime.local.usage import Looks, Usage
from plimsoll_runtime.residency.spec import ModelName

KEY = ModelName("team", "m")


@pytest.fixture
async def answers(unused_tcp_port: int):  # type: ignore[no-untyped-def]
    """Return a function that serves a body at `/metrics` and returns the URL."""
    runners = []

    async def serve(body: bytes, seconds: float = 0.0) -> str:
        async def metrics(_request: web.Request) -> web.Response:
            await asyncio.sleep(seconds)
            return web.Response(body=body)

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        runners.append(web.AppRunner(app, shutdown_timeout=0.1))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", unused_tcp_port).start()
        return f"http://127.0.0.1:{unused_tcp_port}"

    yield serve
    for runner in runners:
        await runner.cleanup()


async def scraped(url: str, seconds: float = 30.0) -> Scrape | None:
    async with aiohttp.ClientSession() as session:
        return await scrape(session, url, seconds)


async def test_the_series_are_those_of_a_real_server(answers) -> None:  # type: ignore[no-untyped-def]
    """The time of the last request appears after the first request to a model; other requests do not change it."""
    state = ServerState(names=("first",), deployment=KEY)
    metrics = Metrics(state)
    metrics.observe(RequestRecord("list"), "/v1/models", 200)
    assert LAST_REQUEST not in metrics.render().body.decode().replace(f"# HELP {LAST_REQUEST}", "").replace(
        f"# TYPE {LAST_REQUEST}", ""
    )
    metrics.observe(RequestRecord("chat", model="m", key=KEY), "/v1/chat/completions", 200)
    found = await scraped(await answers(metrics.render().body))
    assert found is not None
    assert found.of(IN_FLIGHT, KEY) == 0.0
    last = found.of(LAST_REQUEST, KEY)
    assert last is not None
    assert last > 1.7e9


@pytest.mark.parametrize("body", [b"<html>Please log in</html>", b"\xff\xfe", b"plimsoll_x{model= 3"])
async def test_what_is_no_text_of_metrics_is_no_answer(answers, body: bytes) -> None:  # type: ignore[no-untyped-def]
    assert await scraped(await answers(body)) is None


async def test_nobody_waits_longer_than_the_limit(answers) -> None:  # type: ignore[no-untyped-def]
    assert await scraped(await answers(b"", seconds=60.0), 0.2) is None
    assert await scraped("http://127.0.0.1:9") is None


def test_tokens_a_second_are_what_came_between_two_looks() -> None:
    def looks(before: float, after: float) -> Looks:
        return Looks(Scrape(10.0, {(TOKENS, KEY): before}), Scrape(12.0, {(TOKENS, KEY): after, (IN_FLIGHT, KEY): 3.0}))

    assert looks(100, 140).usage(KEY, 7) == Usage(7, 3, 20.0, None)
    assert looks(100, 10).usage(KEY, 7).tokens_per_second == 5.0, "a new process"
    assert looks(1, 2).usage(ModelName("other", "m"), 7) == Usage(7)


def test_replicas_are_summed_and_the_last_request_of_any_counts() -> None:
    total = Usage(1, 2, 3.0, None) + Usage(10, 20, 30.0, 50.0) + Usage(0, 0, 0.0, 40.0)
    assert total == Usage(11, 22, 33.0, 50.0)
    assert total.document(60.0) == {"memoryBytes": 11, "requests": 22, "tokensPerSecond": 33.0, "idleSeconds": 10.0}
    assert Usage().document(60.0)["idleSeconds"] is None
