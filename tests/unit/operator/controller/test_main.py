"""How the process ends, and its health."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import BaseTestServer, TestServer
from kubernetes.aio import client
from operator_support.objects import model

from plimsoll_cluster.connection import Connection, NoClusterError
from plimsoll_operator.controller import main as module
from plimsoll_operator.controller.main import main, operate
from plimsoll_operator.controller.options import parse_options
from plimsoll_operator.kube.api import PLURALS
from plimsoll_operator.kube.health import ListenError, serve_health
from plimsoll_operator.kube.leader_election import LeaseLostError
from plimsoll_operator.kube.plan_executor import NotLeaderError
from plimsoll_operator.spec.identity import GROUP, KIND, VERSION

SOURCE = {"source": "demo://gemma-3-270m"}
LEAST = ["--runtime-image", "reg/rt:1", "--lease-namespace", "system", "--health-port", "0"]


@pytest.mark.parametrize("error", [LeaseLostError("lost"), NotLeaderError("ended")])
def test_what_ends_it_for_good_is_logged(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    assert module._code_of(ExceptionGroup("", [error])) == 1
    assert str(error) in caplog.text


def test_a_signal_is_a_good_end() -> None:
    assert module._code_of(None) == 0


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        module._code_of(ExceptionGroup("", [ValueError("a bug"), LeaseLostError("lost")]))
    assert raised.group_contains(ValueError)


def test_without_a_cluster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def connect() -> None:
        raise NoClusterError("neither inside a pod nor with a usable kubeconfig")

    monkeypatch.setattr(module, "connect", connect)
    assert main(LEAST) == 1
    assert capsys.readouterr().err == "plimsoll-operator: neither inside a pod nor with a usable kubeconfig\n"


async def test_health() -> None:
    live, trouble = True, ""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    runner = await serve_health(port, lambda: live, lambda: trouble)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            assert [await status(session, path) for path in ("/live", "/health", "/metrics")] == [200, 200, 200]
            async with session.get("/metrics") as response:
                text = await response.text()
            assert 'plimsoll_build_info{component="operator",version="' in text
            assert "process_cpu_seconds_total " in text
            assert "_created" not in text
            live = False
            assert [await status(session, path) for path in ("/live", "/health")] == [503, 200]
            live, trouble = True, "nobody leads"
            assert [await status(session, path) for path in ("/live", "/health", "/metrics")] == [200, 503, 200]
            async with session.get("/health") as answer:
                assert await answer.text() == "nobody leads\n"
        with pytest.raises(ListenError, match=f"port {port} .*choose another --health-port"):
            await serve_health(port, lambda: True, str)
    finally:
        await runner.cleanup()


class Hanging:
    """An API server with one ModelDeployment that grants all rights, and whose writes end when `go` is set."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.lease: Any = {"metadata": {"name": "plimsoll-operator", "namespace": "system", "resourceVersion": "1"}}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("selfsubjectaccessreviews"):
            return web.json_response({"status": {"allowed": True}})
        if "/leases/" in request.path:
            if request.method == "PUT":
                self.lease = await request.json()
                if not self.lease["spec"]["holderIdentity"]:
                    self.said.append("released")
            return web.json_response(self.lease)
        if request.method == "GET":
            return await self.read(request)
        self.begun.set()
        await self.go.wait()
        self.said.append("written")
        return web.json_response({}, status=500)

    async def read(self, request: web.Request) -> web.StreamResponse:
        if request.path in DISCOVERY:
            return web.json_response(DISCOVERY[request.path])
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
        found = model("m", model=SOURCE)
        found["metadata"]["resourceVersion"] = "7"
        items = [found] if request.path.endswith(f"/{PLURALS[KIND]}") else []
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": items})


def kinds(group: str, **plurals: str) -> Any:
    """Return a group version as in the API server's discovery."""
    found = [
        {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": ["list", "watch"]}
        for kind, plural in plurals.items()
    ]
    return {"groupVersion": group, "resources": found}


DISCOVERY: dict[str, Any] = {
    "/api": {"versions": ["v1"]},
    "/apis": {
        "groups": [
            {
                "name": GROUP,
                "versions": [{"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}],
                "preferredVersion": {"version": VERSION},
            }
        ]
    },
    "/api/v1": kinds("v1", Namespace="namespaces", Event="events"),
    f"/apis/{GROUP}/{VERSION}": kinds(f"{GROUP}/{VERSION}", **PLURALS),
}


def connection_to(server: BaseTestServer) -> Connection:
    return Connection(client.Configuration(host=str(server.make_url("")).rstrip("/")))


@pytest.mark.long
async def test_the_lease_is_given_back_when_what_is_being_written_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next leader acts immediately on its first lists, which would miss a write that ends later."""
    api, app, stop = Hanging(), web.Application(), asyncio.Event()
    app.router.add_route("*", "/{path:.*}", api.answer)
    for patience in ("controller.controller.MARGIN", "kube.api.WRITE_SECONDS", "kube.api.LEASE_SECONDS"):
        monkeypatch.setattr(f"plimsoll_operator.{patience}", 600.0)  # nothing ends because this machine is slow
    async with TestServer(app) as server, asyncio.timeout(60), connection_to(server) as connection:
        running = asyncio.create_task(operate(parse_options([*LEAST, "--all-namespaces"]), connection, stop))
        await api.begun.wait()
        stop.set()
        async with aiohttp.ClientSession() as session:
            for _ in range(20):  # far more than it takes to give a Lease back
                assert await status(session, str(server.make_url("/apis"))) == 200
        assert (api.said, running.done()) == ([], False)
        api.go.set()
        assert await running == 0
    assert api.said[-1] == "released"
    assert set(api.said[:-1]) == {"written"}


async def status(session: aiohttp.ClientSession, path: str) -> int:
    async with session.get(path) as answer:
        return answer.status
