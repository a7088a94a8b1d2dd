"""Model cards of replicas are fetched once, and never delay a list."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from plimsoll_gateway.routing import model_cards

if TYPE_CHECKING:
    import pytest
    from tests.unit.gateway.conftest import Request, World

CARD = {"id": "m", "object": "model", "max_model_len": 4096, "task": "generate", "endpoints": ["/v1/completions"]}


async def told(request: Request) -> None:
    assert request.line == "GET /v1/models/m HTTP/1.1"
    request.respond(200, json.dumps(CARD | {"abilities": ["tools"], "owned_by": "x", "about": "a base model"}))


async def listed(world: World) -> dict[str, Any]:
    async with world.get("/v1/models") as response:
        [entry] = (await response.json())["data"]
    async with world.get("/v1/models/m") as response:
        assert await response.json() == entry
    return dict(entry)


async def test_it_is_asked_once_and_again_of_another_replica(world: World) -> None:
    upstream = await world.model(told)
    for _ in range(3):
        entry = await listed(world)
        assert {field: entry[field] for field in CARD} == CARD
        assert (entry["abilities"], entry["owned_by"], entry["ready_replicas"]) == (["tools"], "ns", 1)
        assert entry["about"] == "a base model"
    assert len(upstream.requests) == 1
    world.show(world.replica(upstream))
    await listed(world)
    assert len(upstream.requests) == 2


async def test_one_that_cannot_tell_is_asked_again_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(request: Request) -> None:
        request.respond(404, '{"error": {"message": "no"}}')

    async def asleep(request: Request) -> None:
        request.respond(200, json.dumps(CARD | {"max_model_len": None}))

    async def damaged(request: Request) -> None:
        request.respond(200, '{"max_model_len": "many"}')

    now = 0.0
    monkeypatch.setattr(world.gateway._cards, "_clock", lambda: now)
    upstream = await world.model(fails, asleep, damaged, told)
    for expected in (None, None, None, 4096, 4096):
        entry = await listed(world)
        assert entry["max_model_len"] == expected
        now += model_cards.AGAIN_SECONDS
    assert len(upstream.requests) == 4


async def test_one_that_is_silent_or_gone_holds_up_nobody(
    world: World, refused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(request: Request) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(model_cards, "ANSWER_SECONDS", 0.01)
    world.show(world.replica(await world.upstream(silent)))
    assert (await listed(world))["max_model_len"] is None
    world.show(world.replica(refused_port))
    assert (await listed(world))["max_model_len"] is None
