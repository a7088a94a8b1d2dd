"""A real client against a small API server: paths, pages, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientTimeout, web
from aiohttp.test_utils import TestServer

kubernetes_client = pytest.importorskip("kubernetes.aio.client", reason="needs the [operator] extra")

from plimsoll_cluster import kubernetes_source  # noqa: E402
from plimsoll_cluster.connection import Connection, connect  # noqa: E402
from plimsoll_cluster.kubernetes_source import KubernetesSource, follow  # noqa: E402
from plimsoll_cluster.reflector import GoneError, UnreachableError  # noqa: E402
from plimsoll_cluster.resource import Resource  # noqa: E402
from plimsoll_cluster.store import Store  # noqa: E402

THINGS: Resource[str] = Resource(
    "Thing", "/apis/x/v1", "things", lambda item: str(item["metadata"]["name"]), "a=b", hint="apply the crds/"
)
NODES: Resource[None] = Resource("Node", "/api/v1", "nodes", lambda _: None, namespaced=False)


class Api:
    """Lists seven objects, two on a page."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.status = 200
        self.watched = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, dict(request.query)))
        if self.status != 200:
            return web.json_response({"message": "no"}, status=self.status)
        if "watch" in request.query:
            self.watched.set()
            await asyncio.Event().wait()
        begin = int(request.query.get("continue", "0"))
        rest = {"continue": str(begin + 2)} if begin + 2 < 7 else {}
        names = range(begin, min(begin + 2, 7))
        items = [
            {"metadata": {"name": f"t{n}", "namespace": "ns", "uid": f"u{n}", "resourceVersion": "4"}} for n in names
        ]
        return web.json_response({"items": items, "metadata": {"resourceVersion": "9", **rest}})


@pytest.fixture
async def api() -> AsyncIterator[tuple[Api, Any]]:
    made, app = Api(), web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    async with TestServer(app) as server:
        configuration = kubernetes_client.Configuration(host=str(server.make_url("")).rstrip("/"))
        async with Connection(configuration) as client:
            yield made, client


async def test_one_object_is_asked_for_by_its_name(api: tuple[Api, Any]) -> None:
    """A Role can therefore name it."""
    server, client = api
    source = KubernetesSource(client, Resource("Thing", "/apis/x/v1", "things", lambda _: None, name="t1"), "ns")
    assert [page async for page in source.list()]
    watching = asyncio.create_task(source.watch(9).asend(None))
    await server.watched.wait()
    watching.cancel()
    assert "watch" in server.asked[-1][1]
    assert {query["fieldSelector"] for _, query in server.asked} == {"metadata.name=t1"}


async def test_a_list_comes_in_pages(api: tuple[Api, Any]) -> None:
    server, client = api
    pages = [page async for page in KubernetesSource(client, THINGS, "ns").list()]
    assert [[item["metadata"]["name"] for item in page.items] for page in pages] == [
        ["t0", "t1"],
        ["t2", "t3"],
        ["t4", "t5"],
        ["t6"],
    ]
    assert {page.version for page in pages} == {9}
    assert {path for path, _ in server.asked} == {"/apis/x/v1/namespaces/ns/things"}
    assert [query.get("continue") for _, query in server.asked] == [None, "2", "4", "6"]
    assert all(query["labelSelector"] == "a=b" for _, query in server.asked)
    assert all("resourceVersion" not in query for _, query in server.asked), "an old list would include deleted objects"


@pytest.mark.parametrize(("namespaces", "things"), [(None, 1), (["ns", "other"], 2)])
async def test_each_namespace_is_followed_and_what_has_none_once(
    api: tuple[Api, Any], namespaces: list[str] | None, things: int
) -> None:
    server, client = api
    stores: tuple[Store[Any], ...] = (Store(THINGS, namespaces), Store(NODES, namespaces))
    following = asyncio.create_task(follow(client, *stores))
    async with asyncio.timeout(60):
        await asyncio.gather(*(store.wait_synced() for store in stores))
    following.cancel()
    await asyncio.wait({following})
    lists = [path for path, query in server.asked if "watch" not in query and "continue" not in query]
    assert len(lists) == things + 1
    assert "/api/v1/nodes" in lists
    assert all(("/namespaces/" in path) is (namespaces is not None) for path in lists if path.endswith("/things"))


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [(410, GoneError, "no"), (403, UnreachableError, "403"), (404, UnreachableError, r"404: .*apply the crds/")],
)
async def test_errors_say_what_to_do(api: tuple[Api, Any], status: int, error: type[Exception], said: str) -> None:
    server, client = api
    server.status = status
    with pytest.raises(error, match=said):
        async for _ in KubernetesSource(client, THINGS, "ns").list():
            pass


async def _garbled(request: web.Request) -> web.StreamResponse:
    return web.Response(status=500, body=b"\xff\xfe no", content_type="text/plain", charset="utf-8")


async def _broken_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=500, headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"no")
    assert request.transport is not None
    request.transport.close()
    return response


@pytest.mark.parametrize("answer", [_garbled, _broken_off])
async def test_an_error_that_cannot_be_read_is_one_all_the_same(answer: Any) -> None:
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        configuration = kubernetes_client.Configuration(host=str(server.make_url("")).rstrip("/"))
        async with Connection(configuration) as client:
            source = KubernetesSource(client, THINGS, "ns")
            with pytest.raises(UnreachableError):
                async for _ in source.list():
                    pass
            with pytest.raises(UnreachableError):
                async for _ in source.watch(1):
                    pass


NESTED = b"[" * 100_000 + b"]" * 100_000
UNREADABLE = [
    b'{"metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"name": "\xff"}}]}\n',
    b'{"metadata": {"name": "\xff"}, "items": []}\n',
    b'{"metadata": {"resourceVersion": "9"}, "items": [{"spec": ' + NESTED + b"}]}\n",
    b'{"metadata": {"resourceVersion": ' + NESTED + b'}, "items": []}\n',
    b'{"metadata": \n',
]


@pytest.mark.parametrize("body", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_what_cannot_be_read_is_worth_another_try(body: bytes) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        configuration = kubernetes_client.Configuration(host=str(server.make_url("")).rstrip("/"))
        async with Connection(configuration) as client:
            source = KubernetesSource(client, THINGS, "ns")
            with pytest.raises(UnreachableError):
                [list(page.items) async for page in source.list()]
            with pytest.raises(UnreachableError):
                async for _ in source.watch(1):
                    pass


async def test_a_silent_watch_ends_and_only_an_unanswered_one_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server sends no bookmark of a resource without events, so silence is no failure."""
    monkeypatch.setattr(kubernetes_source, "WATCH_TIMEOUT", ClientTimeout(total=None, sock_connect=10, sock_read=0.2))
    accepts = [True, False]

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if accepts.pop(0):
            await response.prepare(request)
        await asyncio.Event().wait()
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        configuration = kubernetes_client.Configuration(host=str(server.make_url("")).rstrip("/"))
        async with Connection(configuration) as client:
            source = KubernetesSource(client, THINGS, "ns")
            assert [event async for event in source.watch(1)] == []
            with pytest.raises(UnreachableError, match="imeout"):
                assert [event async for event in source.watch(1)]


async def test_watches_of_many_namespaces_leave_room_for_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own limit is 100 connections."""
    made, app = Api(), web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    async with TestServer(app) as server:
        default = kubernetes_client.Configuration(host=str(server.make_url("")).rstrip("/"))
        monkeypatch.setattr(kubernetes_client.Configuration, "_default", default)
        monkeypatch.setattr("plimsoll_cluster.connection.config.load_incluster_config", lambda: None)
        async with await connect() as client:
            store = Store(THINGS, [f"n{number}" for number in range(101)])
            following = asyncio.create_task(follow(client, store))
            async with asyncio.timeout(60):
                while sum("watch" in query for _, query in made.asked) < 101:
                    await made.watched.wait()
                    made.watched.clear()
                assert [page async for page in KubernetesSource(client, THINGS, "ns").list()]
            following.cancel()
            await asyncio.wait({following})
