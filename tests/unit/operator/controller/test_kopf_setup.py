"""Observing kopf's requests, and the session for kopf."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from plimsoll_cluster.connection import Connection
from plimsoll_operator.controller.kopf_setup import LOGIN_SECONDS, LONGEST_BACKOFF, Backoffs, Login
from plimsoll_operator.kube.stores import MODELS, Stores


class Stub:
    """An API server that answers each request in the same way, and records its headers."""

    def __init__(self) -> None:
        self.status = 200
        self.tokens: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers.get("Authorization", ""))
        return web.json_response({}, status=self.status)


class Asking:
    """Requests like kopf's, to a stub."""

    def __init__(self, url: str, stores: Stores, settings: client.Configuration) -> None:
        self.url = url
        self.login = Login(Connection(settings), lambda: stores)
        self.session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()

    async def get(self, path: str, **query: str) -> None:
        if self.session is None:
            self.session = (await self.login.session()).aiohttp_session
        async with self.session.request("get", self.url + path, params=query):
            pass


@pytest.mark.parametrize("namespaces", [None, ["team", "other"]])
async def test_a_list_of_kopfs_casts_doubt_and_nothing_else_does(namespaces: list[str] | None) -> None:
    stores, stub, app = Stores(namespaces), Stub(), web.Application()
    app.router.add_get("/{path:.*}", stub.answer)
    part = stores.models.part_of("team")
    path = MODELS.path(None if namespaces is None else "team")
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        settings = client.Configuration(host=url)
        settings.api_key, settings.api_key_prefix = {"BearerToken": "t1"}, {"BearerToken": "Bearer"}
        kopf = Asking(url, stores, settings)
        part.end_list(part.begin_list(), {}, 1)
        await kopf.get("/api/v1")
        await kopf.get(path, watch="true")
        await kopf.get(path, limit="500", **{"continue": "more"})
        assert (part.outdated, part.lists_done) == (False, 1)
        settings.api_key["BearerToken"] = "t2"
        await kopf.get(path, limit="500")
        assert part.outdated
        others = [p for store in stores.primaries() for p in store.parts.values() if p is not part]
        assert all(other.lists_done == 0 and other._wanted == 1 for other in others)
        assert stub.tokens == ["Bearer t1"] * 3 + ["Bearer t2"], "tokens are renewed while we run"
        await kopf.close()


async def test_a_collection_that_cannot_be_read_is_in_trouble_until_it_can() -> None:
    stores, stub, app = Stores(None), Stub(), web.Application()
    app.router.add_get("/{path:.*}", stub.answer)
    part, path = stores.models.part_of("team"), MODELS.path(None)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        kopf = Asking(url, stores, client.Configuration(host=url))
        stub.status = 403
        for _ in range(2):
            await kopf.get(path, watch="true")
        assert (part.failures, part.trouble) == (2, "modeldeployments: the API server returned 403: Forbidden")
        await kopf.get(path)
        assert part.lists_begun == 0, "a rejected list does not count"
        stub.status = 200
        await kopf.get(path, watch="true")
        assert (part.failures, part.trouble) == (0, "")
    with pytest.raises(aiohttp.ClientError):
        await kopf.get(path, watch="true")
    assert part.failures >= 1
    assert "modeldeployments: " in part.trouble
    await kopf.close()


async def test_a_token_that_is_refused_again_and_again_is_not_tried_at_once() -> None:
    now, waits = 100.0, []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    connection = Connection(client.Configuration(host="http://127.0.0.1"))
    login = Login(connection, lambda: None, clock=lambda: now, sleep=sleep)
    made: list[Any] = [await login.session()]
    now += 1.0
    made.append(await login.session())
    now += 60.0
    made.append(await login.session())
    assert waits == [LOGIN_SECONDS - 1.0]
    assert made[0] != made[1], "kopf ignores a login that it has seen refused"
    for session in made:
        await session.aiohttp_session.close()


def test_tries_never_end_and_are_never_far_apart() -> None:
    for _ in range(2):  # kopf iterates over them again for each request
        found = [pause for _, pause in zip(range(1000), Backoffs(), strict=False)]
        assert len(found) == 1000
        assert max(found) == found[-1] == LONGEST_BACKOFF
        assert found == sorted(found)
        assert found[0] > 0
