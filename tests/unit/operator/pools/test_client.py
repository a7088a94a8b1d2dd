"""The door to hosts, over real HTTP."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.test_utils import TestServer
from operator_support.stub_host import StubHost

from plimsoll_operator.identity import ObjectKey
from plimsoll_operator.pools.client import HostClient, host_session

MODEL = ObjectKey("team", "a")
HOSTS = 150


async def test_questions_that_wait_for_news_leave_room_for_requests() -> None:
    """The HTTP client's own limit is 100 connections."""
    waiting, asked, news = 0, asyncio.Event(), asyncio.Event()

    async def report(request: web.Request) -> web.Response:
        nonlocal waiting
        waiting += 1
        if waiting == HOSTS:
            asked.set()
        await news.wait()
        return web.json_response(StubHost().body())

    async def change(request: web.Request) -> web.Response:
        return web.json_response(None)

    app = web.Application()
    app.router.add_get("/host/v1/report", report)
    app.router.add_post("/host/v1/models/team/a/wake", change)
    async with TestServer(app) as server, host_session() as session, asyncio.timeout(60):
        client = HostClient(session, str(server.make_url("")).rstrip("/"), "token")
        questions = [asyncio.create_task(client.report(0)) for _ in range(HOSTS)]
        await asked.wait()
        assert await client.wake(MODEL, "operation")
        news.set()
        assert {report.instance for report in await asyncio.gather(*questions)} == {"i1"}
