"""GET /: a page for browsers, JSON for programs, and no model's name without a key."""

import asyncio
import json
import shlex
import subprocess
from html import unescape
from typing import Any

import httpx
import pytest

from plimsoll_runtime.engine.protocol.pooling import PoolingInfo

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def command_of(page: str) -> list[str]:
    return shlex.split(unescape(page.partition("<pre><code>")[2].partition("</code>")[0]))


async def test_a_browser_gets_a_page_whose_command_works(run_server: Any) -> None:
    async with run_server() as server, server.http() as http:
        answer = await http.get("/", headers=BROWSER)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "accept" in answer.headers["vary"].lower()
        assert answer.headers["cache-control"] == "no-store"
        assert "<li><code>fake</code></li><li><code>alias</code></li>" in answer.text
        assert 'href="docs"' in answer.text
        assert "<script" not in answer.text
        command = command_of(answer.text)
        ran = await asyncio.to_thread(
            subprocess.run, [*command, "--silent", "--noproxy", "*"], capture_output=True, timeout=60, check=True
        )
        assert json.loads(ran.stdout)["choices"][0]["message"]["content"] == "Hello!"
        head = await http.head("/", headers=BROWSER)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(answer.content))
        assert (await http.post("/", headers=BROWSER)).status_code == 405


async def test_programs_get_json(run_server: Any) -> None:
    async with run_server() as server, server.http() as http:
        for accept in ("*/*", "application/json", "text/html;q=0.1, application/json"):
            answer = await http.get("/", headers={"accept": accept})
            assert answer.headers["content-type"] == "application/json"
            assert answer.json() == {
                "name": "Plimsoll runtime",
                "models": ["fake", "alias"],
                "api": "/v1",
                "docs": "/docs",
                "openapi": "/openapi.json",
            }


@pytest.mark.parametrize("header", [{"authorization": "Bearer k"}, {"x-api-key": "k"}])
async def test_models_are_named_for_a_key_alone(run_server: Any, header: dict[str, str]) -> None:
    async with run_server(api_keys=("k",)) as server, server.http() as http:
        for accept in (BROWSER, {"accept": "*/*"}):
            answer = await http.get("/", headers=accept)
            assert answer.status_code == 200
            assert "fake" not in answer.text
            assert "alias" not in answer.text
            assert "fake" in (await http.get("/", headers=accept | header)).text
            wrong = {name: value.replace("k", "wrong") for name, value in header.items()}
            refused = await http.get("/", headers=accept | wrong)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        page = (await http.get("/", headers=BROWSER)).text
        assert "An API key is required" in page
        assert "Authorization: Bearer $PLIMSOLL_API_KEY" in command_of(page)
        forged = {"x-plimsoll-gateway": "c" * 16, "x-plimsoll-tenant": "t"}
        assert (await http.get("/", headers=BROWSER | forged)).status_code == 401


async def test_a_host_is_text_and_never_a_command(run_server: Any) -> None:
    async with run_server() as server, server.http() as http:
        for host, shown in (
            ("ai.example.com", "ai.example.com"),
            ("[::1]:8000", "[::1]:8000"),
            ("<script>alert(1)</script>", "HOST"),
            ("a$(touch${IFS}x)", "HOST"),
            ("a;b", "HOST"),
            ("a" * 300, "HOST"),
        ):
            page = (await http.get("/", headers=BROWSER | {"host": host})).text
            assert command_of(page)[1] == f"http://{shown}/v1/chat/completions"
            assert "<script" not in page
        behind = BROWSER | {"host": "a.b", "x-forwarded-proto": "https"}
        assert command_of((await http.get("/", headers=behind)).text)[1].startswith("https://a.b/")


async def test_a_model_that_generates_nothing_is_asked_for_what_it_has(run_server: Any) -> None:
    async with run_server(pooling=PoolingInfo("embed", 4)) as server, server.http() as http:
        words = command_of((await http.get("/", headers=BROWSER)).text)
        path = words[1].removeprefix(server.url)
        assert path == "/v1/embeddings"
        assert (
            await http.post(path, content=words[-1], headers={"content-type": "application/json"})
        ).status_code == 200


async def test_there_is_a_page_before_there_is_a_model(run_server: Any) -> None:
    never = asyncio.Event()

    async def load(*_: Any) -> Any:
        await never.wait()

    async with run_server(load=load) as server, httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        answer = await http.get("/", headers=BROWSER)
        assert (answer.status_code, "fake" in answer.text) == (200, True)
        assert (await http.get("/v1/models")).status_code == 503
