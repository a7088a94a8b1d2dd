"""What is watched, against a small API server: which changes reach the queue, as whom, and that nothing is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from plimsoll_operator.api import Credentials
from plimsoll_operator.identity import GROUP, MANAGED_LABEL, MANAGER, OWNER_LABEL, PLURAL, VERSION, ObjectKey
from plimsoll_operator.nodes import NodeRegistry
from plimsoll_operator.watch import CHILDREN, WatchError, watch

Json = dict[str, Any]
MODELS = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
PODS, SERVICES, NODES = "/api/v1/pods", "/api/v1/services", "/api/v1/nodes"
GROUPS = {GROUP: VERSION, "apiextensions.k8s.io": "v1"}
KINDS = {
    "/api/v1": {"pods": "Pod", "services": "Service", "namespaces": "Namespace", "nodes": "Node"},
    f"/apis/{GROUP}/{VERSION}": {PLURAL: "ModelDeployment"},
    "/apis/apiextensions.k8s.io/v1": {"customresourcedefinitions": "CustomResourceDefinition"},
}
"""kopf wants to find kinds that it then does not watch."""


class SmallApi:
    """Lists nothing, streams what is put into a queue, and keeps what it was asked."""

    def __init__(self) -> None:
        self.events: dict[str, asyncio.Queue[Json]] = {
            path: asyncio.Queue() for path in (MODELS, PODS, SERVICES, NODES)
        }
        self.asked: list[tuple[str, str, Json]] = []
        self.tokens: set[str | None] = set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.replace("/namespaces/team", "")
        self.asked.append((request.method, request.path, dict(request.query)))
        self.tokens.add(request.headers.get("authorization"))
        if path in self.events:
            return await self._watched(request, path)
        return web.json_response(_discovery(request.path))

    async def _watched(self, request: web.Request, path: str) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            event = await self.events[path].get()
            await response.write(json.dumps(event).encode() + b"\n")


def _discovery(path: str) -> Json:
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        versions = {name: {"groupVersion": f"{name}/{v}", "version": v} for name, v in GROUPS.items()}
        groups = [{"name": name, "versions": [v], "preferredVersion": v} for name, v in versions.items()]
        return {"kind": "APIGroupList", "groups": groups}
    verbs = ["get", "list", "watch", "patch"]
    kinds = [
        {"name": name, "kind": kind, "singularName": "", "namespaced": name != "nodes", "verbs": verbs}
        for name, kind in KINDS[path].items()
    ]
    return {"kind": "APIResourceList", "groupVersion": path.removeprefix("/apis/"), "resources": kinds}


class Queue:
    """Keeps the keys that are added."""

    def __init__(self) -> None:
        self.added: asyncio.Queue[ObjectKey] = asyncio.Queue()

    def add(self, key: ObjectKey) -> None:
        self.added.put_nowait(key)

    def add_all(self, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            self.add(key)


class Access:
    """What `watch` needs of the API's client: how to reach the server."""

    def __init__(self, server: str) -> None:
        self._server = server

    async def credentials(self) -> Credentials:
        return Credentials(self._server, False, None, None, None, "Bearer secret")


@pytest.fixture
async def api() -> AsyncIterator[tuple[SmallApi, str]]:
    small = SmallApi()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", small.answer)
    async with TestServer(app) as server:
        yield small, str(server.make_url("")).rstrip("/")


def changed(kind: str, name: str, labels: Json | None = None) -> Json:
    meta = {"namespace": "team", "name": name, "uid": f"u-{name}", "resourceVersion": "2", "labels": labels or {}}
    version = f"{GROUP}/{VERSION}" if kind == "ModelDeployment" else "v1"
    return {"type": "MODIFIED", "object": {"apiVersion": version, "kind": kind, "metadata": meta, "spec": {}}}


def child(kind: str, name: str, owner: str) -> Json:
    return changed(kind, name, {MANAGED_LABEL: MANAGER, OWNER_LABEL: owner})


async def take(queue: Queue) -> ObjectKey:
    return await asyncio.wait_for(queue.added.get(), 20)


async def stopped(watching: asyncio.Task[None]) -> None:
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize("namespaces", [None, ["team"]])
async def test_changes_of_models_and_of_their_children_reach_the_queue(
    api: tuple[SmallApi, str], namespaces: list[str] | None
) -> None:
    small, url = api
    queue, armed = Queue(), asyncio.Event()
    watching = asyncio.create_task(watch(Access(url), queue, namespaces, armed.set))  # type: ignore[arg-type]
    try:
        small.events[MODELS].put_nowait(changed("ModelDeployment", "gemma"))
        assert await take(queue) == ObjectKey("team", "gemma")
        assert armed.is_set()
        small.events[PODS].put_nowait(child("Pod", "gemma-x1", "gemma"))
        assert await take(queue) == ObjectKey("team", "gemma")
        small.events[SERVICES].put_nowait(child("Service", "llama", "llama"))
        assert await take(queue) == ObjectKey("team", "llama")
    finally:
        await stopped(watching)
    assert {method for method, _, _ in small.asked} == {"GET"}, "it writes nothing"
    assert small.tokens == {"Bearer secret"}
    asked = [(path, query) for _, path, query in small.asked if path.endswith(("/pods", "/services", f"/{PLURAL}"))]
    for path, query in asked:
        assert ("/namespaces/team/" in path) is (namespaces is not None)
        assert query.get("labelSelector") == (None if path.endswith(PLURAL) else CHILDREN)


async def test_an_object_that_is_deleted_needs_a_pass_too(api: tuple[SmallApi, str]) -> None:
    small, url = api
    queue = Queue()
    watching = asyncio.create_task(watch(Access(url), queue, ["team"], lambda: None))  # type: ignore[arg-type]
    try:
        small.events[MODELS].put_nowait({**changed("ModelDeployment", "gone"), "type": "DELETED"})
        assert await take(queue) == ObjectKey("team", "gone")
    finally:
        await stopped(watching)


@pytest.mark.parametrize("namespaces", [None, ["team"]])
async def test_a_drain_reaches_those_who_have_pods_there(
    api: tuple[SmallApi, str], namespaces: list[str] | None
) -> None:
    small, url = api
    queue, nodes, gemma = Queue(), NodeRegistry(), ObjectKey("team", "gemma")
    nodes.note_use(gemma, ["n1"])
    access: Any = Access(url)
    watching = asyncio.create_task(watch(access, queue, namespaces, lambda: None, nodes))  # type: ignore[arg-type]
    try:
        drained = changed("Node", "n1")
        drained["object"]["spec"] = {"unschedulable": True}
        small.events[NODES].put_nowait(drained)
        assert await take(queue) == gemma
        assert nodes.known["n1"].cordoned
        small.events[NODES].put_nowait({**drained, "type": "DELETED"})
        assert await take(queue) == gemma
        assert nodes.known == {}
    finally:
        await stopped(watching)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, "kopf has ended"),
        (RuntimeError("no such kind"), "ModelDeployments, pods and Services cannot be watched: no such kind"),
    ],
)
async def test_watching_never_ends_without_a_reason(
    api: tuple[SmallApi, str], monkeypatch: pytest.MonkeyPatch, error: Exception | None, told: str
) -> None:
    _, url = api

    async def end(tasks: Sequence[asyncio.Task[None]], **_: Any) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if error is not None:
            raise error

    monkeypatch.setattr("kopf.run_tasks", end)
    with pytest.raises(WatchError, match=told):
        await watch(Access(url), Queue(), ["team"], lambda: None)  # type: ignore[arg-type]
