"""Requests equal those of the Kubernetes client library."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

kubernetes_client = pytest.importorskip("kubernetes.aio.client", reason="needs the [operator] extra")

from plimsoll_cluster.connection import Connection  # noqa: E402

PATIENCE = aiohttp.ClientTimeout(total=60)
HEADERS = ("Accept", "Authorization", "Content-Type")


@dataclass
class Server:
    """Records method, path, query, headers and body of requests."""

    url: str = ""
    asked: list[tuple[str, str, dict[str, str], dict[str, str], bytes]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        headers = {name: request.headers[name] for name in HEADERS if name in request.headers}
        path, query = request.raw_path.partition("?")[0], dict(request.query)
        self.asked.append((request.method, path, query, headers, await request.read()))
        return web.json_response({})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made, app = Server(), web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    async with TestServer(app) as running:
        made.url = str(running.make_url("")).rstrip("/")
        yield made


async def test_a_request_is_the_one_that_the_library_makes(server: Server) -> None:
    settings = kubernetes_client.Configuration(host=server.url)
    settings.api_key["authorization"] = "Bearer secret"
    path, query = "/api/v1/namespaces/a%2Fb/pods", {"fieldManager": "x", "labelSelector": "a.b/c=d,e=f"}
    async with kubernetes_client.ApiClient(settings) as library:
        method, url, headers, body, _ = await library.param_serialize(
            "POST",
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            body={"a": 1},
            auth_settings=["BearerToken"],
        )
        await (await library.call_api(method, url, headers, body)).read()
    async with Connection(settings) as ours:
        answer = await ours.ask("POST", path, query, b'{"a": 1}', patience=PATIENCE)
        assert await answer.json() == {}
    theirs, mine = server.asked
    assert mine == theirs


async def test_a_token_that_is_renewed_is_used_from_then_on(server: Server) -> None:
    settings, tokens = kubernetes_client.Configuration(host=server.url), iter(("first", "second"))

    def renew(settings: Any) -> None:
        settings.api_key["authorization"] = f"Bearer {next(tokens)}"

    settings.api_key["authorization"] = "Bearer of before"
    settings.refresh_api_key_hook = renew
    async with Connection(settings) as ours:
        for _ in range(2):
            (await ours.ask("GET", "/x", patience=PATIENCE)).close()
    assert [headers["Authorization"] for *_, headers, _ in server.asked] == ["Bearer first", "Bearer second"]


async def test_a_proxy_of_the_environment_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with Connection(kubernetes_client.Configuration(host="http://api.invalid")) as ours:
        (await ours.ask("GET", "/x", patience=PATIENCE)).close()
    assert [path for _, path, *_ in server.asked] == ["http://api.invalid/x"]


async def test_a_proxy_of_the_kubeconfig_is_used(server: Server) -> None:
    settings = kubernetes_client.Configuration(host="http://api.invalid", proxy=server.url)
    async with Connection(settings) as ours:
        (await ours.ask("GET", "/x", patience=PATIENCE)).close()
    assert [path for _, path, *_ in server.asked] == ["http://api.invalid/x"]
