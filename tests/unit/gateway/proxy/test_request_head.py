"""Request heads: extra slashes do not change a path, a model's name stays as it is, and there is one host."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from plimsoll_gateway.admission.limits import MODEL_PATHS
from plimsoll_gateway.errors.refusals import Refusal
from plimsoll_gateway.proxy.request_head import check_host, path_of, plain_path

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

PATHS = sorted(MODEL_PATHS | {"/v1/models", "/v1/files", "/v1/files/file-1/content", "/v1/batches", "/health", "/"})
NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._:/-]{0,20}[A-Za-z0-9])?", fullmatch=True)
"""The format in the schema of ModelDeployments."""


@st.composite
def more_slashes(draw: st.DrawFn, path: str) -> str:
    """Return the path with each slash repeated one to three times, and up to two at its end."""
    spread = re.sub("/", lambda _: "/" * draw(st.integers(1, 3)), path)
    return spread + "/" * draw(st.integers(0, 2))


@given(data=st.data(), path=st.sampled_from(PATHS))
def test_slashes_too_many_change_no_path(data: st.DataObject, path: str) -> None:
    assert plain_path(data.draw(more_slashes(path))) == path


@given(data=st.data(), name=NAMES)
def test_a_models_name_keeps_its_slashes(data: st.DataObject, name: str) -> None:
    prefix = data.draw(more_slashes("/v1/models")).rstrip("/") + "/" * data.draw(st.integers(1, 3))
    for written in (name, quote(name, safe="")):
        assert path_of({"raw_path": f"{prefix}{written}/".encode()}) == f"/v1/models/{name}"


@given(path=st.from_regex(r"/[a-z/%0-9.]{0,100}", fullmatch=True))
def test_a_plain_path_is_plain(path: str) -> None:
    once = plain_path(path)
    assert plain_path(once) == once
    assert once == "/" or not once.endswith("/")


@given(hosts=st.integers(0, 3), others=st.integers(0, 3), version=st.sampled_from(["1.0", "1.1"]))
def test_a_head_has_one_host(hosts: int, others: int, version: str) -> None:
    """Other headers may be repeated. HTTP/1.0 may have no host."""
    scope = {"headers": [(b"x-same", b"1")] * others + [(b"host", b"a")] * hosts, "http_version": version}
    if hosts == 1 or (not hosts and version == "1.0"):
        check_host(scope)
    else:
        with pytest.raises(Refusal, match=f"has {hosts} Host headers"):
            check_host(scope)


@pytest.mark.parametrize("path", ["/v1//chat/completions", "/v1/chat/completions/", "//v1//chat//completions//"])
async def test_a_replica_is_asked_for_the_plain_path(world: World, ok: Behaviour, path: str) -> None:
    upstream = await world.model(ok)
    async with world.client.post(URL(world.url + path, encoded=True), json={"model": "m"}) as response:
        assert response.status == 200
    assert upstream.requests[0].line == "POST /v1/chat/completions HTTP/1.1"


async def test_models_are_found_with_slashes_too_many(world: World) -> None:
    async def card(request: Request) -> None:
        request.respond(200, '{"max_model_len": 7}', "content-type: application/json")

    upstream = await world.upstream(card)
    world.show(world.replica(upstream), name="hf://org/m")
    for path in ("/v1/models/", "/v1//models", "/v1/models//"):
        status, found = await world.ask("GET", path)
        assert (status, [model["id"] for model in found["data"]]) == (200, ["hf://org/m"])
    for path in ("/v1/models/hf://org/m", "/v1//models//hf://org/m/", "/v1/models/hf:%2F%2Forg%2Fm"):
        async with world.client.get(URL(world.url + path, encoded=True)) as response:
            assert (await response.json())["id"] == "hf://org/m"


async def test_errors_on_such_paths_are_in_the_shape_of_their_api(world: World) -> None:
    world.show()
    status, told = await world.ask("POST", "/v1//messages/", json={"model": "none"})
    assert (status, told["type"]) == (404, "error")
