"""Requests for stored responses reach the replica that has them, by the id alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gateway_support.keys import Keys
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, TableStore, build_table
from plimsoll_gateway.errors.refusals import Refusal
from plimsoll_gateway.proxy.body import Message
from plimsoll_gateway.proxy.request_peek import read_fields
from plimsoll_gateway.routing.response_affinity import NOWHERE, TAKE_OVER_SECONDS, ResponseAffinity, place_of

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, Upstream, World

PATH = "/v1/responses"
RANDOM = "0123456789abcdef" * 2
BELIEVED = "x-plimsoll-tenant: believed"


def kept_by(replica: str) -> str:
    return f"resp_{place_of(replica)}{RANDOM}"


async def trio(world: World, *behaviours: Behaviour) -> dict[str, Upstream]:
    """Return the upstreams of a model's three replicas, by the replicas' ids."""
    upstreams = [await world.upstream(*behaviours) for _ in range(3)]
    replicas = [world.replica(upstream) for upstream in upstreams]
    world.show(*replicas)
    return {replica.id: upstream for replica, upstream in zip(replicas, upstreams, strict=True)}


def only_replica(world: World) -> Replica:
    assert world.store.current is not None
    [replica] = world.store.current.models[0].replicas
    return replica


def lines(upstreams: dict[str, Upstream]) -> dict[str, list[str]]:
    return {name: [request.line for request in one.requests] for name, one in upstreams.items() if one.requests}


async def test_a_replica_is_told_its_place(world: World, ok: Behaviour) -> None:
    """Only the gateway can send it, not a client."""
    upstreams = await trio(world, ok)
    for path in (PATH, "/v1/chat/completions"):
        for _ in range(4):
            async with world.post(path=path, headers={"x-plimsoll-place": "f" * 12}) as response:
                assert response.status == 200
    asked = [(name, request) for name, one in upstreams.items() for request in one.requests]
    assert len(asked) == 8
    for name, request in asked:
        place = place_of(name) if PATH in request.line else None
        assert request.headers.get("x-plimsoll-place") == place


@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("GET", ""),
        ("GET", "?stream=true&starting_after=3"),
        ("DELETE", ""),
        ("POST", "/cancel"),
        ("GET", "/input_items?limit=2"),
    ],
)
async def test_it_is_asked_for_where_it_is(world: World, ok: Behaviour, method: str, rest: str) -> None:
    upstreams = await trio(world, ok)
    for name in upstreams:
        path = f"{PATH}/{kept_by(name)}{rest}"
        assert await world.ask(method, path) == (200, {"ok": True})
        assert lines({name: upstreams[name]}) == {name: [f"{method} {path} HTTP/1.1"]}


async def test_what_outlives_its_replica_is_found_at_the_next_one(world: World, ok: Behaviour) -> None:
    """Both store it under one name; others never had it."""
    first, second, other = [await world.upstream(ok) for _ in range(3)]
    keeping = [replace(world.replica(upstream), keeper="ns/m-0") for upstream in (first, second)]
    beside = replace(world.replica(other), keeper="ns/m-1")
    path = f"{PATH}/{kept_by('ns/m-0')}"
    for replica, upstream in zip(keeping, (first, second), strict=True):
        world.show(replica, beside)
        assert await world.ask("GET", path) == (200, {"ok": True})
        async with world.post({"model": "m", "previous_response_id": kept_by("ns/m-0")}, PATH) as response:
            assert response.status == 200
        assert [request.line.split()[0] for request in upstream.requests] == ["GET", "POST"]
        assert upstream.requests[-1].headers["x-plimsoll-place"] == place_of("ns/m-0")
    assert other.requests == []


@pytest.mark.parametrize("goes_on", [False, True])
async def test_while_whoever_keeps_it_is_replaced_clients_ask_again(world: World, ok: Behaviour, goes_on: bool) -> None:
    """Between a deleted pod and its replacement there is no replica, but the data still exists."""
    first, other = [await world.upstream(ok) for _ in range(2)]
    keeping = replace(world.replica(first), keeper="ns/m-0")
    beside = replace(world.replica(other), keeper="ns/m-1")
    response = kept_by("ns/m-0")

    async def ask() -> tuple[int, Any]:
        if goes_on:
            return await world.ask("POST", PATH, json={"model": "m", "previous_response_id": response})
        return await world.ask("GET", f"{PATH}/{response}")

    world.show(beside)
    assert (await ask())[0] == 404, "no table had this keeper"
    world.show(keeping, beside)
    world.show(beside)
    world.show(beside, replace(beside, id="more", keeper="ns/m-2"))
    status, told = await ask()
    assert (status, told["error"]["code"]) == (503, "model_not_ready")
    assert "is being replaced" in told["error"]["message"]
    world.show(keeping, beside)
    assert (await ask())[0] == 200


def test_a_keeper_that_has_no_successor_is_gone_in_the_end() -> None:
    now, store = 0.0, TableStore()
    places = ResponseAffinity(store, lambda: now)
    kept = Replica("p", "http://127.0.0.1:1", ready=True, keeper="ns/m-0")

    def show(*replicas: Replica) -> Model:
        model = Model(ObjectKey("ns", "m"), ("m",), 1.0, "", replicas)
        store.replace(build_table([model]))
        return model

    def told(model: Model) -> list[int]:
        found = []
        for asked in (partial(places.find, kept_by("ns/m-0")), partial(places.holders, model, place_of("ns/m-0"))):
            with pytest.raises(Refusal) as refused:
                asked()
            found.append(refused.value.status)
        return found

    show(kept)
    now = 5.0
    without = show()
    now = 5.0 + TAKE_OVER_SECONDS
    assert told(without) == [503, 503]
    now += 1
    assert told(without) == [404, 404]
    show(replace(kept, keeper="ns/m-1"))
    assert told(without) == [404, 404]


async def test_a_conversation_goes_on_where_it_is(world: World, ok: Behaviour) -> None:
    upstreams = await trio(world, ok)
    chosen = list(upstreams)[1]
    reference = {"type": "item_reference", "id": f"msg_{kept_by(chosen).removeprefix('resp_')}1f"}
    backwards = dict(reversed(reference.items()))
    goes_on: list[dict[str, Any]] = [
        {"previous_response_id": kept_by(chosen)},
        {"input": [reference]},
        {"input": [reference], "previous_response_id": None},
        {"input": [{"role": "user", "content": "Hi"}, backwards]},
    ]
    for fields in goes_on * 2:
        async with world.post({"model": "m", **fields}, PATH) as response:
            assert response.status == 200
    assert list(lines(upstreams)) == [chosen]
    assert len(upstreams[chosen].requests) == 8


@pytest.mark.parametrize("goes_on", [False, True])
async def test_what_its_replica_took_with_it_is_gone(world: World, ok: Behaviour, goes_on: bool) -> None:
    upstreams = await trio(world, ok)
    response = kept_by("somebody else")
    if goes_on:
        status, told = await world.ask("POST", PATH, json={"model": "m", "previous_response_id": response})
    else:
        status, told = await world.ask("GET", f"{PATH}/{response}")
    assert (status, told["error"]["code"]) == (404, "response_not_found")
    assert "The replica that stored this response is gone" in told["error"]["message"]
    assert lines(upstreams) == {}


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_replica_that_is_not_ready_may_come_back(world: World, ok: Behaviour, goes_on: bool) -> None:
    away = world.replica(await world.upstream(ok), ready=False)
    world.show(world.replica(await world.upstream(ok)), away)
    if goes_on:
        body = {"model": "m", "previous_response_id": kept_by(away.id)}
        status, told = await world.ask("POST", PATH, json=body)
    else:
        status, told = await world.ask("GET", f"{PATH}/{kept_by(away.id)}")
    assert (status, told["error"]["code"]) == (503, "model_not_ready")


@pytest.mark.parametrize("response", ["resp_1", f"resp_{NOWHERE}{RANDOM}", "%C3%A4", "resp_" + "g" * 44])
async def test_an_id_that_no_gateway_knows(world: World, ok: Behaviour, response: str) -> None:
    await trio(world, ok)
    status, told = await world.ask("GET", f"{PATH}/{response}")
    assert (status, told["error"]["code"]) == (404, "response_not_found")


async def test_the_method_and_the_path_must_fit(world: World, ok: Behaviour) -> None:
    upstreams = await trio(world, ok)
    path = f"{PATH}/{kept_by(next(iter(upstreams)))}"
    for method, rest, status in (
        ("POST", "", 405),
        ("GET", "/cancel", 405),
        ("DELETE", "/input_items", 405),
        ("GET", "/elsewhere", 404),
        ("GET", "/cancel/again", 404),
    ):
        assert (await world.ask(method, path + rest))[0] == status
    assert lines(upstreams) == {}


async def test_a_stream_passes_and_ends_with_its_client(world: World) -> None:
    async def stream(request: Request) -> None:
        request.begin_events()
        request.chunk("event: response.created\ndata: {}\n\n")

    upstream = await world.model(stream)
    replica = only_replica(world)
    async with world.get(f"{PATH}/{kept_by(replica.id)}?stream=true") as response:
        assert await response.content.readuntil(b"\n\n") == b"event: response.created\ndata: {}\n\n"
        response.close()
    await upstream.requests[0].hung_up.wait()


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("event: response.completed\ndata: {}\n\n", 200),
        ("event: response.in_progress\ndata: {}\n\nevent: response.failed\ndata: {}\n\n", 200),
        ('event: response.output_text.delta\ndata: {"delta": "event: response.completed"}\n\n', 499),
    ],
)
async def test_who_has_heard_all_may_hang_up(world: World, last: str, code: int) -> None:
    async def stream(request: Request) -> None:
        request.begin_events()
        request.chunk("event: response.created\ndata: {}\n\n")
        request.chunk(last)

    upstream = await world.model(stream)
    async with world.post({"model": "m", "stream": True}, PATH) as response:
        await response.content.readuntil(last.encode())
        response.close()
    await upstream.requests[0].hung_up.wait()
    assert await world.metric(f'plimsoll_gateway_requests_total{{code="{code}",model="m",namespace="ns"}}') == 1


async def test_a_replica_that_cannot_be_reached(world: World, refused_port: int) -> None:
    replica = world.replica(refused_port)
    world.show(replica)
    status, told = await world.ask("GET", f"{PATH}/{kept_by(replica.id)}")
    assert (status, told["error"]["code"]) == (502, "upstream_failed")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """One key, which has a limit of tokens."""
    made = Keys(tmp_path)
    made.add("team", tokensPerMinute=10_000, tenant="tenant")
    return made


@pytest.fixture
def keyed(
    run_world: Callable[..., AbstractAsyncContextManager[World]], keys: Keys
) -> AbstractAsyncContextManager[World]:
    return run_world(**keys.options())


async def test_whose_it_is_the_replica_is_told(keyed: AbstractAsyncContextManager[World], keys: Keys) -> None:
    async def believes(request: Request) -> None:
        request.respond(200, "{}", "content-type: application/json", BELIEVED)

    async with keyed as world:
        upstream = await world.model(believes)
        replica = only_replica(world)
        path = f"{PATH}/{kept_by(replica.id)}"
        assert (await world.ask("GET", path))[0] == 401
        assert (await world.ask("GET", path, headers=keys.header("team")))[0] == 200
    [request] = upstream.requests
    assert request.headers["x-plimsoll-tenant"] == "tenant"
    assert "authorization" not in request.headers


async def test_a_replica_that_believes_nobody_tells_nothing(
    keyed: AbstractAsyncContextManager[World], keys: Keys, ok: Behaviour
) -> None:
    """It would return any tenant's responses to all."""
    async with keyed as world:
        await world.model(ok)
        replica = only_replica(world)
        status, told = await world.ask("GET", f"{PATH}/{kept_by(replica.id)}", headers=keys.header("team"))
    assert (status, told["error"]["code"]) == (503, "gateway_not_believed")


async def test_what_runs_in_the_background_counts_before_it_has_run(
    keyed: AbstractAsyncContextManager[World], keys: Keys
) -> None:
    async def queued(request: Request) -> None:
        request.respond(200, '{"status": "queued", "usage": null}', "content-type: application/json", BELIEVED)

    async with keyed as world:
        await world.model(queued)
        left = []
        for fields in ({}, {"background": True}):
            body = {"model": "m", "input": "Hi", "max_output_tokens": 3000, **fields}
            async with world.post(body, PATH, headers=keys.header("team")) as response:
                assert response.status == 200
            async with world.post(
                {"model": "m", "max_output_tokens": 1}, PATH, headers=keys.header("team")
            ) as response:
                left.append(int(response.headers["x-ratelimit-remaining-tokens"]))
    assert left[0] - left[1] >= 3000


FIELDS = st.sampled_from(["previous_response_id", "input", "background"])


@given(st.dictionaries(FIELDS, st.text() | st.lists(st.text())))
def test_whatever_a_request_says_it_is_read(fields: dict[str, Any]) -> None:
    asked = read_fields(PATH, memoryview(json.dumps({"model": "m", **fields}).encode()))
    assert asked.place == ""


@given(st.text(max_size=30), st.booleans())
def test_only_what_is_referred_to_leads_anywhere(text: str, escaped: bool) -> None:
    """Ids in texts do not count, nor do those of complete items."""
    reference = {"type": "item_reference", "id": f"msg_{place_of('r')}{RANDOM}0"}
    content = json.dumps(reference) if escaped else text
    whole = {"type": "message", "role": "user", "id": reference["id"], "content": content}
    body = memoryview(json.dumps({"model": "m", "input": [whole]}).encode())
    assert read_fields(PATH, body).place == ""
    assert (
        read_fields("/v1/embeddings", memoryview(json.dumps({"model": "m", "input": [reference]}).encode())).place == ""
    )


def test_keys_that_are_twice_there_are_refused_as_ever() -> None:
    with pytest.raises(Refusal):
        read_fields(PATH, memoryview(b'{"model": "m", "previous_response_id": "a", "previous_response_id": "b"}'))


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("POST", f"{PATH}/resp_{'1' * 44}/cancel", 404),
        ("POST", "/v1/completions", 401),
        ("POST", "/v1/files", 401),
        ("PUT", "/v1/completions", 405),
        ("POST", "/nowhere", 404),
    ],
)
async def test_what_is_refused_unread_is_taken_before_it_is_told(
    keyed: AbstractAsyncContextManager[World], keys: Keys, method: str, path: str, code: int
) -> None:
    """At any stage: a client that sends everything before it reads gets the reason, not a broken connection."""
    async with keyed as world:
        pieces, seen = [b"x" * 1000] * 3, list[str]()

        async def receive() -> Message:
            seen.append("piece")
            return {"type": "http.request", "body": pieces.pop(), "more_body": bool(pieces)}

        async def send(message: Message) -> None:
            seen.append(message["type"])
            if "status" in message:
                assert message["status"] == code

        headers = [(b"content-length", b"3000")]
        if code == 404:
            headers.append((b"authorization", keys.header("team")["authorization"].encode()))
        head: Message = {"type": "http", "http_version": "1.0", "method": method, "query_string": b""}
        scope = {**head, "path": path, "raw_path": path.encode(), "headers": headers}
        await world.gateway(scope, receive, send)
        assert seen == ["piece"] * 3 + ["http.response.start", "http.response.body"]
