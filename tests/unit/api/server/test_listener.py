"""TLS, CORS and the log of a server."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

from cluster.pki import Authority, Identity
from plimsoll_runtime.api.server.config import ListenerOptions
from plimsoll_runtime.api.server.listener import Certificate, HttpServer, listen
from plimsoll_runtime.errors import UsageError
from plimsoll_telemetry.log_format import JsonLines

BODY = {"model": "fake", "prompt": "Hi", "max_tokens": 1}
PAGE = "https://chat.example.com"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "pki")
    made.create()
    made.issue(Identity("one", "/CN=one", ["IP:127.0.0.1"]))
    made.issue(Identity("two", "/CN=two", ["IP:127.0.0.1"]))
    return made


def installed(authority: Authority, name: str, folder: Path) -> ListenerOptions:
    """Install the certificate of that name where a server reads its own."""
    listener_options = ListenerOptions(folder / "tls.crt", folder / "tls.key")
    assert listener_options.certificate is not None
    assert listener_options.key is not None
    listener_options.certificate.write_bytes(authority.certificate_of(name).read_bytes())
    listener_options.key.write_bytes(authority.key_of(name).read_bytes())
    return listener_options


async def subject(authority: Authority, port: int) -> str:
    """Return the subject of the certificate of a new connection."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    async with httpx.AsyncClient(verify=context) as client:
        answer = await client.get(f"https://127.0.0.1:{port}/live")
        assert answer.status_code == 200
        shown = answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert()
        return str(dict(part[0] for part in shown["subject"])["commonName"])


@asynccontextmanager
async def serving(listener_options: ListenerOptions) -> AsyncIterator[tuple[HttpServer, int]]:
    """A server that answers everything with 200, and its port."""
    server = HttpServer(PlainTextResponse("fine"), listener_options)
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield server, port
        finally:
            server.should_exit = True
            await task


async def test_a_certificate_is_renewed_while_the_server_runs(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plimsoll_runtime.api.server.listener.CERTIFICATE_TICKS", 1)
    listener_options = installed(authority, "one", tmp_path)
    async with serving(listener_options) as (server, port):
        assert await subject(authority, port) == "one"
        installed(authority, "two", tmp_path)
        while await subject(authority, port) != "two":
            await asyncio.sleep(0)
        assert listener_options.key is not None
        listener_options.key.write_text("damaged")
        await server.on_tick(0)
        assert await subject(authority, port) == "two"


@pytest.mark.parametrize("damage", ["missing", "garbage", "another's"])
def test_files_that_are_no_certificate_are_refused(authority: Authority, tmp_path: Path, damage: str) -> None:
    listener_options = installed(authority, "one", tmp_path)
    assert listener_options.certificate is not None
    assert listener_options.key is not None
    if damage == "missing":
        listener_options.key.unlink()
    else:
        listener_options.key.write_bytes(b"-" if damage == "garbage" else authority.key_of("two").read_bytes())
    with pytest.raises(UsageError, match=r"--tls-certificate .* cannot be used"):
        Certificate(listener_options.certificate, listener_options.key)


async def test_pages_of_a_named_origin_may_ask(run_server: Any) -> None:
    asks = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with (
        run_server(listener_options=ListenerOptions(origins=(PAGE,)), api_keys=("k",)) as running,
        running.http() as http,
    ):
        allowed = await http.options("/v1/completions", headers=asks)
        assert allowed.status_code == 200, "the browser asks before it sends a key"
        assert allowed.headers["access-control-allow-origin"] == PAGE
        answer = await http.post("/v1/completions", json=BODY, headers={"Origin": PAGE, "Authorization": "Bearer k"})
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
        refused = await http.post("/v1/completions", json=BODY, headers={"Origin": PAGE})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)
        other = await http.options("/v1/completions", headers={**asks, "Origin": "https://elsewhere.example"})
        assert other.status_code == 400
        assert "access-control-allow-origin" not in other.headers


async def test_without_origins_no_page_may(run_server: Any) -> None:
    async with run_server() as running, running.http() as http:
        answer = await http.post("/v1/completions", json=BODY, headers={"Origin": PAGE})
        assert "access-control-allow-origin" not in answer.headers


async def test_a_request_s_line_has_fields(run_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with caplog.at_level(logging.INFO, logger="plimsoll_runtime.api.server.access"):
        async with run_server() as running, running.http() as http:
            headers = {"X-Request-Id": "mine", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
            await http.post("/v1/completions", json=BODY, headers=headers)
            await http.post("/v1/completions", json={}, headers={"traceparent": "nonsense"})
    first, second = [json.loads(JsonLines("runtime").format(r)) for r in caplog.records if hasattr(r, "fields")]
    assert (first["request_id"], first["status"], first["path"]) == ("mine", 200, "/v1/completions")
    assert (first["completion_tokens"], first["finish_reasons"], first["trace_id"]) == (1, ["length"], trace)
    assert first["seconds"] >= first["first_token_seconds"] > 0
    assert first["message"].startswith("mine POST /v1/completions 200 in ")
    assert (second["status"], second["trace_id"], second["first_token_seconds"]) == (400, None, None)
