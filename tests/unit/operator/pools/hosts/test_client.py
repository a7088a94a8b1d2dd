"""The client of the host API, over real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from operator_support.stub_host import StubHost

from plimsoll_operator.kube.api import WritesUnderWay
from plimsoll_operator.kube.leader_election import MARGIN
from plimsoll_operator.pools.hosts.client import HostClient, HostError, host_session
from plimsoll_operator.spec.identity import ObjectKey

MODEL = ObjectKey("team", "a")
HOSTS = 150


async def test_questions_that_wait_for_news_leave_room_for_requests() -> None:
    """The HTTP client's default limit is 100 connections."""
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


class Session:
    """Records the time limits of requests, and sends none."""

    def __init__(self) -> None:
        self.seconds: list[float | None] = []

    def request(self, *_: Any, timeout: aiohttp.ClientTimeout, **__: Any) -> Any:
        self.seconds.append(timeout.total)
        raise OSError("no way")


async def test_a_change_has_ended_before_another_operator_may_act() -> None:
    session: Any = Session()
    client = HostClient(session, "http://h", "token")
    for change in (
        client.place(MODEL, "o", {}, "Resident"),
        client.remove(MODEL, "o"),
        client.wake(MODEL, "o"),
        client.sleep(MODEL, "o", "InHost"),
        client.pin(MODEL, "o", pinned=True, weight=1.0, priority=0),
    ):
        with pytest.raises(HostError, match="no way"):
            await change
    assert len(session.seconds) == 5
    assert all(seconds is not None and seconds < MARGIN for seconds in session.seconds)


async def test_a_change_that_is_under_way_is_waited_for_and_a_question_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plimsoll_operator.pools.hosts.client.WRITE_SECONDS", 600.0)
    went, go = asyncio.Event(), asyncio.Event()

    async def change(_: web.Request) -> web.Response:
        went.set()
        await go.wait()
        return web.json_response(None)

    async def report(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    app = web.Application()
    app.router.add_get("/host/v1/report", report)
    app.router.add_post("/host/v1/models/team/a/wake", change)
    async with TestServer(app) as server, host_session() as session, asyncio.timeout(60):
        writes_under_way = WritesUnderWay(600.0)
        client = HostClient(session, str(server.make_url("")).rstrip("/"), "token", writes_under_way)
        callers = [asyncio.create_task(client.wake(MODEL, "o")), asyncio.create_task(client.report(0))]
        await went.wait()
        for caller in callers:
            caller.cancel()
        await asyncio.wait(callers)
        (under_way,) = writes_under_way._tasks
        go.set()
        await writes_under_way.wait()
        assert under_way.result()[0] == 200
