"""The Kubernetes client against a small API server: paths, parameters, chunked events, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

kubernetes_client = pytest.importorskip("kubernetes.aio.client", reason="needs the [operator] extra")

from plimsoll_cluster.connection import Connection  # noqa: E402
from plimsoll_cluster.kubernetes_source import follow  # noqa: E402
from plimsoll_gateway.discovery.cluster_table import ClusterTable  # noqa: E402
from plimsoll_gateway.discovery.routing_table import RoutingTable, TableStore  # noqa: E402

DEPLOYMENTS = "/apis/plimsoll.dev/v1alpha1/namespaces/team/modeldeployments"
PODS = "/api/v1/namespaces/team/pods"
HOSTS = "/apis/plimsoll.dev/v1alpha1/namespaces/team/modelhosts"


def deployment(name: str, version: int) -> dict[str, Any]:
    meta = {
        "namespace": "team",
        "name": name,
        "uid": f"u-{name}",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"long": "x" * 300_000},  # longer than aiohttp's line limit
    }
    return {"metadata": meta, "spec": {"model": {"source": "demo://x"}}}


def pod(name: str, owner: str, version: int) -> dict[str, Any]:
    owners = [{"kind": "ModelDeployment", "name": owner, "uid": f"u-{owner}", "controller": True}]
    meta = {
        "namespace": "team",
        "name": name,
        "uid": name,
        "resourceVersion": str(version),
        "ownerReferences": owners,
    }
    status = {"podIP": "198.18.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": meta, "spec": {"containers": []}, "status": status}


class Api:
    """Lists its objects, and streams events from a queue."""

    def __init__(self) -> None:
        self.held: dict[str, list[dict[str, Any]]] = {DEPLOYMENTS: [], PODS: [], HOSTS: []}
        self.events: dict[str, asyncio.Queue[dict[str, Any] | None]] = {p: asyncio.Queue() for p in self.held}
        self.queries: list[tuple[str, dict[str, str]]] = []
        self.status = 200
        self.refused = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.queries.append((request.path, dict(request.query)))
        if self.status != 200:
            self.refused.set()
            return web.json_response({"kind": "Status", "message": "no"}, status=self.status)
        if request.query.get("watch") != "true":
            return web.json_response({"items": self.held[request.path], "metadata": {"resourceVersion": "10"}})
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await self.events[request.path].get()) is not None:
            raw = json.dumps(event).encode() + b"\n"
            await response.write(raw[: len(raw) // 2])
            await response.write(raw[len(raw) // 2 :])
        return response


@pytest.fixture
async def api(unused_tcp_port: int) -> AsyncIterator[tuple[Api, str]]:
    made = Api()
    app = web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    yield made, f"http://127.0.0.1:{unused_tcp_port}"
    for queue in made.events.values():
        queue.put_nowait(None)
    await runner.cleanup()


class SignallingStore(TableStore):
    """Provides each new table in a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: asyncio.Queue[RoutingTable] = asyncio.Queue()

    def replace(self, table: RoutingTable) -> None:
        super().replace(table)
        self.tables.put_nowait(table)

    async def next(self) -> RoutingTable:
        async with asyncio.timeout(60):
            return await self.tables.get()


async def test_the_table_follows_the_cluster(api: tuple[Api, str]) -> None:
    server, url = api
    server.held[DEPLOYMENTS] = [deployment("a", 3)]
    server.held[PODS] = [pod("a-1", "a", 4)]
    store = SignallingStore()
    configuration = kubernetes_client.Configuration(host=url)
    async with Connection(configuration) as client:
        table = ClusterTable(["team"], store)
        task = asyncio.create_task(follow(client, table.models, table.pods, table.hosts))
        first = await store.next()
        assert [replica.id for replica in first.models[0].replicas] == ["a-1"]
        server.events[PODS].put_nowait({"type": "ADDED", "object": pod("a-2", "a", 11)})
        assert [replica.id for replica in (await store.next()).models[0].replicas] == ["a-1", "a-2"]
        server.events[DEPLOYMENTS].put_nowait({"type": "ADDED", "object": deployment("b", 12)})
        assert (await store.next()).names() == ("a", "b")

        # The version has expired: everything is listed again.
        server.held[PODS] = []
        gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
        server.events[PODS].put_nowait(gone)
        assert (await store.next()).models[0].replicas == ()

        # The server ends a watch: the next one continues from its version, without a new list.
        server.events[DEPLOYMENTS].put_nowait(None)
        server.events[DEPLOYMENTS].put_nowait({"type": "DELETED", "object": deployment("a", 15)})
        assert (await store.next()).names() == ("b",)
        task.cancel()
        await asyncio.wait({task})
    watches = [query for path, query in server.queries if path == DEPLOYMENTS and "watch" in query]
    assert [query["resourceVersion"] for query in watches] == ["10", "12"]
    assert watches[0]["allowWatchBookmarks"] == "true"
    selector = "app.kubernetes.io/name=plimsoll-runtime,app.kubernetes.io/managed-by=plimsoll-operator"
    assert all(query["labelSelector"] == selector for path, query in server.queries if path == PODS)


async def test_a_server_that_refuses_is_asked_again(
    api: tuple[Api, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server, url = api
    server.status = 403
    monkeypatch.setattr("plimsoll_cluster.reflector.FIRST_DELAY", 0.01)
    store = SignallingStore()
    async with Connection(kubernetes_client.Configuration(host=url)) as client:
        table = ClusterTable(["team"], store)
        task = asyncio.create_task(follow(client, table.models, table.pods, table.hosts))
        async with asyncio.timeout(60):
            await server.refused.wait()
        assert store.current is None
        server.status = 200
        assert (await store.next()).names() == ()
        assert "403" in caplog.text
        task.cancel()
        await asyncio.wait({task})
