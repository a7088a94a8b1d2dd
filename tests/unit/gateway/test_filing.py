"""Files and batches lead to the replicas of the model that keeps them, for the key that asks."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gateway_support.keys import Keys

from plimsoll_gateway.filing import filed_at
from plimsoll_gateway.limits import Limits

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

RunWorld = Callable[..., AbstractAsyncContextManager["World"]]
ASKED = [
    ("POST", "/v1/files"),
    ("GET", "/v1/files?limit=2&after=x"),
    ("GET", "/v1/files/file-1"),
    ("DELETE", "/v1/files/file-1"),
    ("GET", "/v1/files/file-1/content"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/batches/batch_1"),
    ("POST", "/v1/batches/batch_1/cancel"),
]


async def believing(request: Request) -> None:
    """A runtime that knows the gateway."""
    request.respond(200, '{"ok": true}', "content-type: application/json", "x-plimsoll-tenant: believed")


@pytest.mark.parametrize(("method", "path"), ASKED)
async def test_without_the_setting_it_is_named(world: World, ok: Behaviour, method: str, path: str) -> None:
    upstream = await world.upstream(ok)
    world.show(world.replica(upstream))
    status, told = await world.ask(method, path, data=b"x" if method == "POST" else None)
    assert (status, told["error"]["code"]) == (501, "files_not_shared")
    assert "--files-model" in told["error"]["message"]
    assert upstream.requests == []


@pytest.mark.parametrize(("method", "path"), ASKED)
async def test_they_go_as_they_come(run_world: RunWorld, ok: Behaviour, method: str, path: str) -> None:
    async with run_world(Limits(), files_model="m") as world:
        upstream = await world.upstream(ok)
        world.show(world.replica(upstream))
        body = b"x" * 9_000_000 if path == "/v1/files" else b""
        assert await world.ask(method, path, data=io.BytesIO(body) if body else None) == (200, {"ok": True})
        [request] = upstream.requests
        assert request.line.startswith(f"{method} {path} ")
        assert request.body == body


async def test_a_model_that_is_not_there_is_told(run_world: RunWorld, ok: Behaviour) -> None:
    async with run_world(files_model="other") as world:
        world.show(world.replica(await world.upstream(ok)))
        status, told = await world.ask("GET", "/v1/files")
        assert (status, told["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("terms", "allowed"),
    [({}, True), ({"models": ["m"]}, False), ({"tokensPerMinute": 5}, False), ({"weight": 2}, True)],
)
async def test_a_bounded_key_makes_no_batch(
    run_world: RunWorld, tmp_path: Path, terms: dict[str, Any], allowed: bool
) -> None:
    keys = Keys(tmp_path)
    keys.add("team", **terms)
    async with run_world(**keys.options(), files_model="m") as world:
        upstream = await world.upstream(believing)
        world.show(world.replica(upstream))
        headers = keys.header("team")
        assert (await world.ask("GET", "/v1/batches"))[0] == 401
        assert (await world.ask("GET", "/v1/batches", headers=headers))[0] == 200
        status, told = await world.ask("POST", "/v1/batches", headers=headers, data=b"{}")
        if allowed:
            assert status == 200
            assert upstream.requests[-1].headers["x-plimsoll-tenant"] == "team"
        else:
            assert (status, told["error"]["code"]) == (403, "batch_not_allowed")
            assert len(upstream.requests) == 1


@pytest.mark.parametrize("path", ["/v1/file", "/v1/files/", "/v1/files/a/b", "/v1/batches/a/b/c", "/v1/filesx"])
def test_other_paths_are_others(path: str) -> None:
    assert filed_at(path) is None
