"""Requests for a model without replicas: they wait within limits, wake it once, and each ends once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from plimsoll_gateway.admission.limits import Limits
from plimsoll_gateway.demand.records import ModelDemand
from plimsoll_gateway.discovery.routing_table import build_table
from plimsoll_gateway.proxy.keepalive_comments import COMMENT

Behaviour = Callable[[Any], Awaitable[None]]
RunWorld = Callable[..., contextlib.AbstractAsyncContextManager[Any]]


async def answer_404(request: Any) -> None:
    """The response of a host whose model has left."""
    error = {"message": "No such model.", "type": "t", "param": "model", "code": "model_not_found"}
    request.respond(404, json.dumps({"error": error}), "content-type: application/json")


async def status_of(world: Any) -> int:
    async with world.post() as response:
        await response.read()
        status: int = response.status
        return status


async def until_waiting(world: Any, count: int = 1) -> None:
    """Wait until this many requests wait for a replica."""
    while (model := found(world)) is None or model.held != count:
        await asyncio.sleep(0)


def found(world: Any) -> ModelDemand | None:
    """Return the demand reported for the model."""
    return next(iter(world.gateway._demand.report().models), None)


def sequence(world: Any) -> int:
    told: int = world.gateway._demand.report().sequence
    return told


async def stream_ok(request: Any) -> None:
    """A complete stream."""
    request.begin_events()
    request.chunk("data: 1\n\n")
    request.chunk("data: [DONE]\n\n")
    request.end()


def ask_stream(world: Any) -> Any:
    return world.post({"model": "m", "stream": True})


async def next_event(response: Any) -> bytes:
    async with asyncio.timeout(60):
        event: bytes = await response.content.readuntil(b"\n\n")
        return event


def error_in(event: bytes) -> Any:
    return json.loads(event.removeprefix(b"data: "))["error"]


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


@pytest.mark.parametrize(
    "body",
    [
        '{"error": {"message": "Unknown path: POST /v1/embeddings.", "type": "t", "param": null, "code": null}}',
        '{"error": {"message": "No such adapter.", "type": "t", "code": "adapter_not_found"}}',
        '{"detail": "Not Found"}',
        "<html>" + "x" * 200_000,
        '{"other": ' + "[" * 20_000 + "]" * 20_000 + "}",
        "",
    ],
)
async def test_what_else_a_pod_does_not_find_is_its_answer(world: Any, ok: Behaviour, body: str) -> None:
    """No other pod offers that path either; the model is still there."""

    async def answer(request: Any) -> None:
        request.respond(404, body, "content-type: application/json", "x-theirs: 1")

    one, other = await world.upstream(answer), await world.upstream(ok)
    asked, spare = world.replica(one), world.replica(other, ready=False)
    world.show(asked, spare, pooled=True)
    async with world.post(path="/v1/embeddings") as response:
        assert (response.status, response.headers["x-theirs"]) == (404, "1")
        assert await response.text() == body
    assert (len(one.requests), len(other.requests)) == (1, 0)


async def test_a_model_that_does_not_come_is_told_when_time_is_up(run_world: RunWorld) -> None:
    async with run_world(limits=Limits(wake_seconds=0.0)) as world:
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


async def test_a_request_for_a_model_at_zero_wakes_it_once_and_goes_out_when_a_replica_is_ready(
    world: Any, ok: Behaviour
) -> None:
    world.show(scales_to=2)
    before = sequence(world)
    asked = [asyncio.create_task(status_of(world)) for _ in range(3)]
    await until_waiting(world, 3)
    assert sequence(world) == before + 1
    assert await world.metric('plimsoll_gateway_held{model="m",namespace="ns"}') == 3
    upstream = await world.upstream(ok)
    replica = world.replica(upstream)
    world.show(world.replica(upstream, ready=False), scales_to=2)
    await until_waiting(world, 3)
    world.show(replica, scales_to=2)
    assert await asyncio.gather(*asked) == [200] * 3
    assert len(upstream.requests) == 3
    assert sequence(world) == before + 2
    assert await world.metric('plimsoll_gateway_held{model="m",namespace="ns"}') == 0
    for until in ("ready", "first_byte"):
        line = f'plimsoll_gateway_cold_start_seconds_count{{model="m",namespace="ns",until="{until}"}}'
        assert await world.metric(line) == 1


async def test_a_burst_after_a_wake_does_not_exceed_what_the_replica_takes(run_world: RunWorld) -> None:
    """Four slots and a quarter more: five requests run at the same time, the others follow as responses end."""
    arrived: asyncio.Queue[Any] = asyncio.Queue()
    async with run_world(limits=Limits()) as world:
        upstream = await world.upstream(arrived.put)
        replica = world.replica(upstream)
        world.show(scales_to=1)
        asked = [asyncio.create_task(status_of(world)) for _ in range(12)]
        await until_waiting(world, 12)
        world.gateway._picker.loads.heard(replica.id, b"running=0, waiting=0, slots=4, kv=0.00", 0)
        world.show(replica, scales_to=1)
        out = [await arrived.get() for _ in range(5)]
        for ended in range(7):
            assert (len(upstream.requests), arrived.empty()) == (5 + ended, True)
            out.pop(0).respond(200, "{}")
            out.append(await arrived.get())
        for request in out:
            request.respond(200, "{}")
        assert await asyncio.gather(*asked) == [200] * 12


@pytest.mark.parametrize("fields", [{"scales_to": 2}, {"pooled": True}])
async def test_time_is_up(run_world: RunWorld, fields: dict[str, Any]) -> None:
    async with run_world(limits=Limits(wake_seconds=0.0)) as world:
        world.show(message="no node has room", **fields)
        async with world.post() as response:
            assert (response.status, "retry-after" in response.headers) == (503, True)
            assert "no node has room" in await response.text()
        assert found(world).held == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("after", [{}, {"scales_to": 2, "stalled": True}])
async def test_a_model_that_is_stopped_or_cannot_be_made_is_told_at_once(world: Any, after: dict[str, Any]) -> None:
    world.show(scales_to=2)
    asked = asyncio.create_task(status_of(world))
    await until_waiting(world)
    world.show(**after)
    assert await asked == 503
    assert await status_of(world) == 503


async def test_a_client_that_goes_while_it_waits_counts_for_nothing(world: Any) -> None:
    world.show(scales_to=1)
    asked = asyncio.create_task(status_of(world))
    await until_waiting(world)
    before = sequence(world)
    asked.cancel()
    await until_waiting(world, 0)
    assert sequence(world) == before + 1
    assert found(world).in_flight == 0  # type: ignore[union-attr]
    assert world.gateway._body_memory.held == 0
    assert not world.gateway._queues._queues


async def test_more_than_the_replicas_to_come_can_answer_are_refused(world: Any) -> None:
    """The queue limit is 3 in this world."""
    world.show(scales_to=1)
    asked = [asyncio.create_task(status_of(world)) for _ in range(3)]
    await until_waiting(world, 3)
    async with world.post() as response:
        assert (response.status, response.headers["retry-after"]) == (503, "5")
        assert (await response.json())["error"]["code"] == "overloaded"
    for one in asked:
        one.cancel()
    await until_waiting(world, 0)


async def test_a_stream_gets_comments_while_it_waits_and_then_its_answer(
    run_world: RunWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plimsoll_gateway.proxy.keepalive_comments.COMMENT_SECONDS", 0.01)
    async with run_world(limits=Limits(hold_seconds=0.0)) as world:
        world.show(scales_to=1)
        async with ask_stream(world) as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["x-request-id"]
            for _ in range(3):
                assert await next_event(response) == COMMENT
            upstream = await world.upstream(stream_ok)
            world.show(world.replica(upstream), scales_to=1)
            while (event := await next_event(response)) == COMMENT:
                pass
            assert event == b"data: 1\n\n"
            assert await response.content.read() == b"data: [DONE]\n\n"
        assert len(upstream.requests) == 1
        (revision,) = found(world).revisions  # type: ignore[union-attr]
        assert (revision.requests, revision.first_byte.count) == (1, 1)


async def test_who_does_not_stream_simply_waits(run_world: RunWorld, ok: Behaviour) -> None:
    async with run_world(limits=Limits(hold_seconds=0.0)) as world:
        world.show(scales_to=1)
        asked = asyncio.create_task(status_of(world))
        await until_waiting(world)
        world.show(world.replica(await world.upstream(ok)), scales_to=1)
        assert await asked == 200


async def test_a_stream_that_has_begun_to_wait_is_never_retried_and_ends_with_an_error_event(
    run_world: RunWorld, resets: Behaviour, ok: Behaviour
) -> None:
    async with run_world(limits=Limits(hold_seconds=0.0)) as world:
        world.show(scales_to=2)
        async with ask_stream(world) as response:
            assert await next_event(response) == COMMENT
            bad, good = await world.upstream(resets), await world.upstream(ok)
            world.show(world.replica(bad), scales_to=2)
            await bad.asked.wait()
            world.show(world.replica(bad), world.replica(good), scales_to=2)
            error = error_in((await response.content.read()).removeprefix(COMMENT))
        assert (error["code"], len(bad.requests), len(good.requests)) == ("upstream_failed", 1, 0)
        assert await world.metric('plimsoll_gateway_requests_total{code="502",model="m",namespace="ns"}') == 1


async def test_a_model_that_is_deleted_while_a_stream_waits_is_told_as_an_event(run_world: RunWorld) -> None:
    async with run_world(limits=Limits(hold_seconds=0.0)) as world:
        world.show(scales_to=2)
        async with ask_stream(world) as response:
            assert await next_event(response) == COMMENT
            world.store.replace(build_table([]))
            assert error_in(await next_event(response))["code"] == "model_not_found"
            assert await response.content.read() == b""


async def test_a_stream_that_a_pools_pod_is_still_waking_gets_comments(run_world: RunWorld) -> None:
    """Its replica is ready, but silent."""
    async with run_world(limits=Limits(hold_seconds=0.0)) as world:
        arrived: asyncio.Queue[Any] = asyncio.Queue()
        upstream = await world.upstream(arrived.put)
        world.show(world.replica(upstream), pooled=True)
        async with ask_stream(world) as response:
            assert await next_event(response) == COMMENT
            await stream_ok(await arrived.get())
            assert (await response.content.read()).endswith(b"data: 1\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize(
    ("body", "code", "what"),
    [
        ('{"error": {"message": "too long", "type": "t", "param": "p", "code": "c"}}', "c", "too long"),
        ("<html>", "upstream_failed", "it sent no stream (status 400)"),
    ],
)
async def test_what_is_no_stream_becomes_an_event_of_the_stream_that_has_begun(
    run_world: RunWorld, body: str, code: str, what: str
) -> None:
    async with run_world(limits=Limits(hold_seconds=0.0)) as world:
        arrived: asyncio.Queue[Any] = asyncio.Queue()
        upstream = await world.upstream(arrived.put)
        world.show(world.replica(upstream), pooled=True)
        async with ask_stream(world) as response:
            assert await next_event(response) == COMMENT
            (await arrived.get()).respond(400, body)
            error = error_in((await response.content.read()).replace(COMMENT, b""))
        assert error["code"] == code
        assert what in error["message"]
        assert await world.metric('plimsoll_gateway_requests_total{code="400",model="m",namespace="ns"}') == (
            1 if code == "c" else 0
        )


async def test_a_stream_whose_client_goes_while_it_is_told_to_wait_ends(run_world: RunWorld) -> None:
    async with run_world(limits=Limits(hold_seconds=0.0)) as world:
        world.show(scales_to=1)
        async with ask_stream(world) as response:
            assert await next_event(response) == COMMENT
        await until_waiting(world, 0)
        while found(world).in_flight:  # type: ignore[union-attr]
            await asyncio.sleep(0)
        assert world.gateway._body_memory.held == 0
