"""A model that is moved between the pods of its pool: requests wait for it, bounded, and nobody hears of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from plimsoll_gateway.limits import Limits
from plimsoll_gateway.table import build_table

Behaviour = Callable[[Any], Awaitable[None]]
RunWorld = Callable[..., contextlib.AbstractAsyncContextManager[Any]]


async def answer_404(request: Any) -> None:
    """What a host says of a model that has left it."""
    request.respond(404, '{"error": {"message": "no such model"}}', "content-type: application/json")


async def status_of(world: Any) -> int:
    async with world.post() as response:
        await response.read()
        status: int = response.status
        return status


async def until_waiting(world: Any) -> None:
    """A request waits for a change of the table."""
    while not world.store._awaited:
        await asyncio.sleep(0)


async def test_a_request_waits_until_a_pod_has_the_model(world: Any, ok: Behaviour) -> None:
    world.show(pooled=True)
    asked = asyncio.create_task(status_of(world))
    await until_waiting(world)
    world.show(message="placed, and not there yet", pooled=True)
    await until_waiting(world)
    upstream = await world.upstream(ok)
    world.show(world.replica(upstream), pooled=True)
    assert await asked == 200
    assert len(upstream.requests) == 1


async def test_who_comes_to_a_pod_that_the_model_left_goes_on_to_the_next(world: Any, ok: Behaviour) -> None:
    old, new = await world.upstream(answer_404), await world.upstream(ok)
    left = world.replica(old)
    world.show(left, pooled=True)
    asked = asyncio.create_task(status_of(world))
    await until_waiting(world)
    world.show(left, world.replica(new), pooled=True)
    assert await asked == 200
    assert (len(old.requests), len(new.requests)) == (1, 1)


async def test_a_model_that_does_not_come_is_told_when_time_is_up(run_world: RunWorld) -> None:
    async with run_world(limits=Limits(hold_seconds=0.0)) as world:
        world.show(message="no host has room", pooled=True)
        async with world.post() as response:
            assert response.status == 503
            assert "no host has room" in await response.text()


async def test_a_model_that_is_deleted_meanwhile_is_unknown(world: Any) -> None:
    world.show(pooled=True)
    asked = asyncio.create_task(status_of(world))
    await until_waiting(world)
    world.store.replace(build_table([]))
    assert await asked == 404


async def test_models_with_pods_of_their_own_are_answered_for_at_once(world: Any) -> None:
    world.show()
    assert await status_of(world) == 503
    upstream = await world.upstream(answer_404)
    world.show(world.replica(upstream))
    assert await status_of(world) == 404
    assert len(upstream.requests) == 1
