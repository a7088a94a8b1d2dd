from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World


async def error_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    error: dict[str, Any] = (await response.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_request_and_answer_pass_unchanged(world: World) -> None:
    async def behave(request: Request) -> None:
        request.respond(
            429, "slow down", "Retry-After: 12", "X-Custom: a", "X-Custom: b", "Connection: X-Hop", "X-Hop: 1"
        )

    upstream = await world.model(behave)
    raw = b'{ "model" : "m", "messages": [] , "n": 1.50 }'
    headers = {
        "authorization": "Bearer k",
        "connection": "x-private",
        "x-private": "1",
        "te": "trailers",
        "x-request-id": "abc",
    }
    async with world.client.post(f"{world.url}/v1/completions?a=b%20c&d", data=raw, headers=headers) as response:
        assert response.status == 429
        assert await response.text() == "slow down"
        assert response.headers["retry-after"] == "12"
        assert response.headers.getall("x-custom") == ["a", "b"]
        assert "x-hop" not in response.headers
        assert response.headers["x-request-id"] == "abc"
    (request,) = upstream.requests
    assert request.line == "POST /v1/completions?a=b%20c&d HTTP/1.1"
    assert request.body == raw
    assert request.headers["authorization"] == "Bearer k"
    assert request.headers["x-request-id"] == "abc"
    assert request.headers["host"] == f"127.0.0.1:{upstream.port}"
    assert not {"x-private", "te"} & set(request.headers)


@pytest.mark.parametrize("given", ["", "two words", "x" * 65, "a/b", "ümlaut"])
async def test_a_poor_request_id_is_replaced(world: World, ok: Behaviour, given: str) -> None:
    upstream = await world.model(ok)
    async with world.post(headers={"x-request-id": given}) as response:
        made = response.headers["x-request-id"]
    assert made != given
    assert len(made) == 32
    assert upstream.requests[0].headers["x-request-id"] == made


async def test_the_replicas_own_request_id_stays(world: World) -> None:
    async def behave(request: Request) -> None:
        request.respond(200, "{}", "x-request-id: theirs")

    await world.model(behave)
    async with world.post() as response:
        assert response.headers.getall("x-request-id") == ["theirs"]


async def test_redirects_and_cookies_are_passed_not_followed(world: World) -> None:
    async def behave(request: Request) -> None:
        request.respond(307, "", "location: http://127.0.0.1:9/elsewhere", "set-cookie: a=b")

    upstream = await world.model(behave)
    for _ in range(2):
        async with world.post(allow_redirects=False) as response:
            assert response.status == 307
            assert response.headers["set-cookie"] == "a=b"
    assert all("cookie" not in request.headers for request in upstream.requests)


async def test_compressed_answers_stay_compressed(world: World) -> None:
    async def behave(request: Request) -> None:
        request.respond(200, "not really gzip", "content-encoding: gzip")

    await world.model(behave)
    async with (
        aiohttp.ClientSession(auto_decompress=False) as client,
        client.post(f"{world.url}/v1/completions", json={"model": "m"}) as response,
    ):
        assert response.headers["content-encoding"] == "gzip"
        assert await response.text() == "not really gzip"


async def test_events_arrive_as_they_are_sent(world: World) -> None:
    steps = [asyncio.Event() for _ in range(3)]

    async def behave(request: Request) -> None:
        request.begin_events()
        for index, step in enumerate(steps):
            request.chunk(f"data: {index}\n\n")
            await step.wait()
        request.end()

    await world.model(behave)
    async with world.post() as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for index, step in enumerate(steps):
            assert await response.content.readuntil(b"\n\n") == f"data: {index}\n\n".encode()
            step.set()
        assert await response.content.read() == b""


async def test_a_client_that_hangs_up_cancels_upstream_at_once(world: World) -> None:
    never = asyncio.Event()

    async def behave(request: Request) -> None:
        request.begin_events()
        request.chunk("data: 0\n\n")
        await request.writer.drain()
        never.set()

    upstream = await world.model(behave)
    response = await world.client.post(f"{world.url}/v1/completions", json={"model": "m"})
    assert await response.content.readuntil(b"\n\n") == b"data: 0\n\n"
    response.close()
    async with asyncio.timeout(60):
        await upstream.requests[0].hung_up.wait()
    assert await world.metric('plimsoll_gateway_requests_in_flight{model="m",namespace="ns"}') == 0
    assert await world.metric('plimsoll_gateway_requests_total{code="499",model="m",namespace="ns"}') == 1


async def test_a_client_that_has_read_the_last_event_is_not_counted_as_gone(world: World) -> None:
    async def behave(request: Request) -> None:
        request.begin_events()
        request.chunk("data: 0\n\n")
        request.chunk("data: [DONE]\n\n")

    upstream = await world.model(behave)
    response = await world.client.post(f"{world.url}/v1/completions", json={"model": "m"})
    await response.content.readuntil(b"[DONE]\n\n")
    response.close()
    async with asyncio.timeout(60):
        await upstream.requests[0].hung_up.wait()
    assert await world.metric('plimsoll_gateway_requests_total{code="200",model="m",namespace="ns"}') == 1


async def test_a_client_that_hangs_up_before_the_answer_cancels_too(world: World) -> None:
    arrived = asyncio.Event()

    async def behave(request: Request) -> None:
        arrived.set()

    upstream = await world.model(behave)
    call = asyncio.create_task(world.client.post(f"{world.url}/v1/completions", json={"model": "m"}))
    await arrived.wait()
    call.cancel()
    async with asyncio.timeout(60):
        await upstream.requests[0].hung_up.wait()
    await asyncio.gather(call, return_exceptions=True)


async def test_a_slow_client_slows_the_replica(world: World) -> None:
    piece, pieces = b"x" * (256 << 10), 512  # 128 MiB, far more than all buffers on the way
    written = 0
    finished = asyncio.Event()

    async def behave(request: Request) -> None:
        nonlocal written
        request.begin()
        for _ in range(pieces):
            request.chunk(piece)
            await request.writer.drain()
            written += len(piece)
        request.end()
        finished.set()

    await world.model(behave)
    async with world.post() as response:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await finished.wait()
        assert written < len(piece) * pieces // 2
        size = 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
        assert size == len(piece) * pieces


async def test_a_huge_answer_arrives_whole(world: World) -> None:
    body = "0123456789" * 800_000

    async def behave(request: Request) -> None:
        request.respond(200, body)

    await world.model(behave)
    async with world.post() as response:
        assert response.headers["content-length"] == str(len(body))
        assert await response.text() == body


async def test_a_stream_that_breaks_ends_with_an_error_event(world: World) -> None:
    async def behave(request: Request) -> None:
        request.begin_events()
        request.chunk('data: {"choices": []}\n\ndata: {"choi')
        await request.writer.drain()
        request.die()

    await world.model(behave)
    async with world.post() as response:
        text = (await response.read()).decode()
    first, last, rest = text.split("\n\n")
    assert first == 'data: {"choices": []}'
    assert rest == ""
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "stream_broken"
    assert "incomplete" in error["message"]
    assert await world.metric('plimsoll_gateway_broken_streams_total{model="m",namespace="ns"}') == 1


@pytest.mark.parametrize("head", ["content-length: 100", "transfer-encoding: chunked"])
async def test_any_other_answer_that_breaks_is_visibly_incomplete(world: World, head: str) -> None:
    async def behave(request: Request) -> None:
        request.send(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n")
        request.send("5\r\nhello\r\n")
        await request.writer.drain()
        request.die()

    await world.model(behave)
    async with world.post() as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


@pytest.mark.parametrize("reason", ["connect", "reset", "unavailable"])
async def test_one_more_attempt_on_another_replica(
    world: World, ok: Behaviour, unavailable: Behaviour, resets: Behaviour, refused_port: int, reason: str
) -> None:
    good = await world.upstream(ok)
    bad = await world.upstream({"reset": resets, "unavailable": unavailable, "connect": ok}[reason])
    broken = world.replica(refused_port if reason == "connect" else bad)
    world.show(broken, world.replica(good))
    for _ in range(4):
        async with world.post() as response:
            assert response.status == 200
            assert await response.json() == {"ok": True}
    assert len(good.requests) == 4
    assert await world.metric(f'plimsoll_gateway_retries_total{{model="m",namespace="ns",reason="{reason}"}}') >= 1


async def test_only_one_more_attempt(world: World, resets: Behaviour) -> None:
    upstreams = [await world.upstream(resets) for _ in range(4)]
    world.show(*map(world.replica, upstreams))
    async with world.post() as response:
        assert response.status == 502
        assert (await error_of(response))["code"] == "upstream_failed"
    assert sum(len(upstream.requests) for upstream in upstreams) == 2


async def test_a_kept_alive_connection_that_was_just_closed_is_tried_again(world: World, ok: Behaviour) -> None:
    async def close_after(request: Request) -> None:
        request.respond(200, "{}")

    async def drop(request: Request) -> None:
        request.die()

    upstream = await world.model(close_after, drop, ok)
    for _ in range(2):
        async with world.post() as response:
            assert response.status == 200
    assert len(upstream.requests) == 3


async def test_a_single_replica_that_is_unavailable_speaks_for_itself(world: World, unavailable: Behaviour) -> None:
    upstream = await world.model(unavailable)
    async with world.post() as response:
        assert response.status == 503
        assert response.headers["retry-after"] == "7"
        assert (await response.json())["error"]["message"] == "draining"
    assert len(upstream.requests) == 1


async def test_nothing_is_repeated_once_an_answer_has_begun(world: World, ok: Behaviour) -> None:
    async def die_late(request: Request) -> None:
        request.begin_events()
        await request.writer.drain()
        request.die()

    bad, good = await world.upstream(die_late), await world.upstream(ok)
    world.show(world.replica(bad))
    async with world.post() as response:
        world.show(world.replica(bad), world.replica(good))
        assert b"stream_broken" in await response.read()
    assert good.requests == []


async def test_an_unreachable_replica_is_a_502_that_tells_no_address(world: World, refused_port: int) -> None:
    world.show(world.replica(refused_port))
    async with world.post() as response:
        assert response.status == 502
        error = await error_of(response)
    assert error["message"] == "No replica of the model 'm' answered: it could not be reached."
    assert error["type"] == "server_error"


@pytest.mark.parametrize("garbage", ["HTTP/9.9 hello\r\n\r\n", "\x00\x01\x02\r\n\r\n", "HTTP/1.1 999 No\r\n\r\n"])
async def test_an_answer_that_is_no_http_is_a_502(world: World, garbage: str) -> None:
    async def behave(request: Request) -> None:
        request.send(garbage)

    await world.model(behave)
    async with world.post() as response:
        assert response.status == 502
        await error_of(response)


async def test_the_busy_replica_is_left_alone(world: World, ok: Behaviour) -> None:
    arrived, release = asyncio.Event(), asyncio.Event()

    async def hang(request: Request) -> None:
        arrived.set()
        await release.wait()
        request.respond(200, "{}")

    busy, free = await world.upstream(hang), await world.upstream(ok)
    replicas = world.replica(busy), world.replica(free)
    world.show(replicas[0])
    first = asyncio.create_task(world.client.post(f"{world.url}/v1/completions", json={"model": "m"}))
    await arrived.wait()
    world.show(*replicas)
    for _ in range(5):
        async with world.post() as response:
            assert response.status == 200
    assert (len(busy.requests), len(free.requests)) == (1, 5)
    release.set()
    (await first).release()


async def test_drained_gateways_cut_what_is_left_with_an_error(world: World) -> None:
    async def behave(request: Request) -> None:
        request.begin_events()
        request.chunk("data: 0\n\n")

    upstream = await world.model(behave)
    async with world.post() as response:
        assert await response.content.readuntil(b"\n\n") == b"data: 0\n\n"
        world.gateway.cut()
        last = (await response.content.read()).decode()
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "gateway_stopping"
    async with asyncio.timeout(60):
        await upstream.requests[0].hung_up.wait()
