"""The operator under kopf: it depends on kopf's watch, and `kopf run` starts it from a checkout."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kopf.testing import KopfRunner
from kubernetes.aio import client
from operator_support.apiserver import FIRST, RELEASE_NAMESPACE, ApiServer, until
from operator_support.direct import Direct

from plimsoll_cluster.connection import Connection
from plimsoll_operator.controller.main import operate
from plimsoll_operator.controller.options import parse_options

SOURCE = {"model": {"source": "demo://gemma-3-270m"}}
MODELS = "/modeldeployments"


class Cuttable:
    """Forwards all requests to an API server, but a watch of ModelDeployments only while `through` is set."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.through = asyncio.Event()
        self.through.set()

    async def forward(self, request: web.Request) -> web.StreamResponse:
        is_watch = "watch" in request.query and request.path.endswith(MODELS)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
            headers = {name: request.headers[name] for name in ("Authorization", "Content-Type", "Accept")
                       if name in request.headers}  # fmt: skip
            url, body = f"{self._server.url}{request.path_qs}", await request.read() or None
            async with session.request(request.method, url, headers=headers, data=body) as answer:
                response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    if is_watch:
                        await self.through.wait()
                    await response.write(chunk)
        return response


@asynccontextmanager
async def operator_behind(cuttable: Cuttable, namespace: str) -> AsyncIterator[None]:
    app, stop = web.Application(), asyncio.Event()
    app.router.add_route("*", "/{path:.*}", cuttable.forward)
    options = parse_options([*arguments(), "--namespace", namespace])
    async with TestServer(app) as proxy:
        settings = client.Configuration(host=str(proxy.make_url("")).rstrip("/"))
        settings.api_key = {"BearerToken": FIRST}
        settings.api_key_prefix = {"BearerToken": "Bearer"}
        async with Connection(settings) as connection:
            running = asyncio.create_task(operate(options, connection, stop, ("test", FIRST)))
            try:
                yield
            finally:  # Connections that a test leaves open would fail others.
                cuttable.through.set()
                stop.set()
                ended = await running
            assert ended == 0


def arguments() -> list[str]:
    image = ["--runtime-image", "registry.example/runtime:1"]
    return [*image, "--lease-namespace", RELEASE_NAMESPACE, "--health-port", "0"]


async def soon(direct: Direct, model: str, pods: int, *, without: str = "") -> None:
    """Wait until a model has this many pods, and none of this name."""
    async with asyncio.timeout(60):
        while True:
            found = await asyncio.to_thread(direct.pods, model)
            if len(found) == pods and without not in {pod["metadata"]["name"] for pod in found}:
                return
            await asyncio.sleep(0.1)


@pytest.mark.long
@pytest.mark.usefixtures("lease")
async def test_without_kopfs_watch_no_change_is_acted_on(server: ApiServer, direct: Direct) -> None:
    cuttable = Cuttable(server)
    async with operator_behind(cuttable, direct.namespace):
        await asyncio.to_thread(direct.create_model, "before", SOURCE)
        await soon(direct, "before", 1)
        cuttable.through.clear()
        await asyncio.to_thread(direct.create_model, "meanwhile", SOURCE)
        (pod,) = await asyncio.to_thread(direct.pods, "before")
        name = pod["metadata"]["name"]
        await asyncio.to_thread(direct.ask, "DELETE", f"/api/v1/namespaces/{direct.namespace}/pods/{name}")
        await soon(direct, "before", 1, without=name)  # It runs, and its own watches work.
        assert await asyncio.to_thread(direct.pods, "meanwhile") == []
        assert "status" not in await asyncio.to_thread(direct.model, "meanwhile")
        cuttable.through.set()
        await soon(direct, "meanwhile", 1)


@pytest.mark.usefixtures("lease")
def test_kopf_run_starts_it(server: ApiServer, direct: Direct, monkeypatch: pytest.MonkeyPatch) -> None:
    location = "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(location, str(server.kubeconfig(FIRST)))
    monkeypatch.setenv("PLIMSOLL_OPERATOR_ARGS", " ".join([*arguments(), "--namespace", direct.namespace]))
    monkeypatch.delitem(sys.modules, "plimsoll_operator.dev", raising=False)
    direct.create_model("m", SOURCE)
    command = ["run", "-n", direct.namespace, "-m", "plimsoll_operator.dev"]
    with KopfRunner(command, registry=kopf.OperatorRegistry(), timeout=60) as runner:
        assert until(lambda: len(direct.pods("m")) == 1, 60)
        metadata = direct.model("m")["metadata"]
        assert "finalizers" not in metadata, "kubectl delete must work without the operator"
        assert "annotations" not in metadata
        direct.delete_model("m")
    assert runner.exit_code == 0
    path = f"/apis/coordination.k8s.io/v1/namespaces/{RELEASE_NAMESPACE}/leases/plimsoll-operator"
    assert not direct.ask("GET", path)["spec"]["holderIdentity"], "given back"
