"""Anthropic's paths: their errors, ends of streams, and overloaded replicas."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

PATH = "/v1/messages"
VERSION = {"anthropic-version": "2023-06-01"}


async def overloaded(request: Request) -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "full"}}
    request.respond(529, json.dumps(body), "content-type: application/json", "retry-after: 7")


async def test_another_replica_is_asked_where_one_is_overloaded(world: World, ok: Behaviour) -> None:
    bad, good = await world.upstream(overloaded), await world.upstream(ok)
    world.show(world.replica(bad), world.replica(good))
    for _ in range(4):
        async with world.post(path=PATH) as response:
            assert response.status == 200
    assert len(good.requests) == 4
    assert bad.requests
    world.show(world.replica(bad))
    async with world.post(path=PATH) as response:
        assert (response.status, response.headers["retry-after"]) == (529, "7")
        assert (await response.json())["error"]["message"] == "full"


@pytest.mark.parametrize(
    ("body", "status", "kind", "code"),
    [
        ({"model": "other"}, 404, "not_found_error", "model_not_found"),
        ({"model": ""}, 400, "invalid_request_error", "invalid_model"),
        ({"model": "m"}, 529, "overloaded_error", "model_not_ready"),
    ],
)
async def test_refusals_of_its_own(world: World, body: dict[str, str], status: int, kind: str, code: str) -> None:
    world.show()
    async with world.post(body, PATH) as response:
        told = await response.json()
        assert (response.status, told["type"], told["error"]["type"]) == (status, "error", kind)
        assert told["error"]["details"] == {"error_code": code}
        assert told["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
        assert ("retry-after" in response.headers) == (status == 529)


async def test_a_stream_that_breaks_ends_with_an_error_event(world: World) -> None:
    async def die_late(request: Request) -> None:
        request.begin_events()
        request.chunk('event: ping\ndata: {"type":"ping"}\n\nevent: mess')
        await request.writer.drain()
        request.die()

    await world.model(die_late)
    async with world.post(path=PATH) as response:
        ping, error, rest = (await response.read()).split(b"\n\n")
    assert (ping, rest) == (b'event: ping\ndata: {"type":"ping"}', b"")
    named, data = error.split(b"\n")
    told = json.loads(data.removeprefix(b"data: "))
    assert named == b"event: error"
    assert (told["type"], told["error"]["type"]) == ("error", "api_error")
    assert told["error"]["details"]["error_code"] == "stream_broken"


async def test_models_without_a_table_and_unknown_ones(world: World) -> None:
    async with world.client.get(f"{world.url}/v1/models", headers=VERSION) as response:
        assert (response.status, (await response.json())["error"]["type"]) == (529, "overloaded_error")
    world.show()
    async with world.client.get(f"{world.url}/v1/models", headers=VERSION) as response:
        told = await response.json()
    assert told == {
        "data": [
            {
                "type": "model",
                "id": "m",
                "display_name": "m",
                "created_at": "1970-01-01T00:16:40Z",
                "max_input_tokens": None,
                "max_tokens": None,
                "lifecycle": "active",
            }
        ],
        "has_more": False,
        "first_id": "m",
        "last_id": "m",
    }
    async with world.client.get(f"{world.url}/v1/models/x", headers=VERSION) as response:
        assert (response.status, (await response.json())["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/images/generations", "/v1/moderations", "/v1/realtime"])
async def test_what_is_not_offered_is_named(world: World, path: str) -> None:
    async with world.post(path=path) as response:
        error = (await response.json())["error"]
    assert (response.status, error["type"], error["code"]) == (404, "invalid_request_error", "not_offered")
    assert f"not offered by this gateway ({path})" in error["message"]
