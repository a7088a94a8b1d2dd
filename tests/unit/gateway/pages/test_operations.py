"""/metrics and /demand of a gateway that serves requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, build_table
from plimsoll_gateway.pages.operations import MOST_QUESTIONS

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World


async def ask_for_demand(world: World, query: str = "") -> Any:
    async with world.inside("/demand" + query) as response:
        assert response.status == 200, await response.text()
        assert response.headers["content-type"] == "application/json"
        return json.loads(await response.read())


def show(world: World, *replicas: Replica) -> None:
    world.store.replace(build_table([Model(ObjectKey("ns", "m"), ("m",), 1000.0, "", replicas)]))


async def test_what_a_stream_took_is_told_by_revision(world: World, unavailable: Behaviour) -> None:
    async def stream(request: Request) -> None:
        request.begin("content-type: text/event-stream", "x-plimsoll-load: running=3, waiting=2, slots=16, kv=0.25")
        request.chunk("data: 1\n\n")
        await request.writer.drain()
        request.chunk("data: 2\n\ndata: 3\n\n")
        request.end()

    upstream = await world.upstream(stream)
    replica = Replica("r", f"http://127.0.0.1:{upstream.port}", True, revision="ab12-cd34-1")
    show(world, replica, Replica("s", "http://127.0.0.1:9", False, revision="old"))
    async with world.post() as response:
        await response.read()
    (model,) = (await ask_for_demand(world))["models"]
    assert {name: model[name] for name in ("namespace", "name", "held", "inFlight", "asked")} == {
        "namespace": "ns", "name": "m", "held": 0, "inFlight": 0, "asked": 1,
    }  # fmt: skip
    new, old = model["revisions"]
    assert {name: new[name] for name in set(new) - {"firstByte", "eventGap"}} == {
        "revision": "ab12-cd34-1", "replicas": 1, "running": 3, "waiting": 2, "slots": 16, "kv": 0.25,
        "requests": 1, "errors": 0, "broken": 0,
    }  # fmt: skip
    assert (new["firstByte"]["count"], new["eventGap"]["count"]) == (1, 2)
    assert new["firstByte"]["seconds"] > 0
    assert new["firstByte"]["buckets"][-1] == [120.0, 1]
    assert (old["revision"], old["replicas"], old["requests"]) == ("old", 0, 0)


async def test_errors_are_those_of_the_replicas(
    world: World, ok: Behaviour, unavailable: Behaviour, resets: Behaviour
) -> None:
    """A 503 that another replica makes good does not count; a request without a response does."""

    async def wrong(request: Request) -> None:
        request.respond(400, "{}")

    async def broken(request: Request) -> None:
        request.begin_events()
        request.chunk("data: 1\n\n")
        await request.writer.drain()
        request.die()

    good, bad = await world.upstream(wrong, broken, ok), await world.upstream(unavailable, resets)
    one = Replica("one", f"http://127.0.0.1:{good.port}", True, revision="good")
    two = Replica("two", f"http://127.0.0.1:{bad.port}", True, revision="bad")
    show(world, one)
    for _ in range(2):
        async with world.post() as response:
            await response.read()
    with contextlib.ExitStack() as stack:
        for _ in range(9):
            stack.enter_context(world.gateway._picker.hold(one))
        show(world, one, two)  # the idle one is picked first
        for _ in range(2):
            async with world.post() as response:
                assert response.status == 200
    (model,) = (await ask_for_demand(world))["models"]
    told = {each["revision"]: (each["requests"], each["errors"], each["broken"]) for each in model["revisions"]}
    assert told == {"good": (4, 0, 1), "bad": (1, 1, 0)}


async def test_a_client_that_hangs_up_is_no_error(world: World) -> None:
    arrived = asyncio.Event()

    async def silent(request: Request) -> None:
        arrived.set()

    upstream = await world.model(silent)
    call = asyncio.create_task(world.client.post(f"{world.url}/v1/completions", json={"model": "m"}))
    await arrived.wait()
    (model,) = (await ask_for_demand(world))["models"]
    assert model["inFlight"] == 1
    assert (model["revisions"][0]["running"], model["revisions"][0]["slots"]) == (1, 0)
    call.cancel()
    await upstream.requests[0].hung_up.wait()
    (model,) = (await ask_for_demand(world))["models"]
    assert (model["inFlight"], model["asked"]) == (0, 1)
    assert (model["revisions"][0]["requests"], model["revisions"][0]["errors"]) == (0, 0)


async def test_the_question_waits_for_news(world: World, ok: Behaviour) -> None:
    first = await ask_for_demand(world)
    waiting = asyncio.create_task(ask_for_demand(world, f"?after={first['sequence']}&wait=30"))
    while not len(world.gateway.operations._questions):
        await asyncio.sleep(0)
    world.gateway._demand.held(ObjectKey("ns", "m"), 1)
    told = await waiting
    assert (told["instance"], told["sequence"]) == (first["instance"], first["sequence"] + 1)


async def test_a_question_whose_asker_is_gone_is_dropped_and_too_many_are_refused(world: World) -> None:
    questions = world.gateway.operations._questions
    async with asyncio.timeout(60), aiohttp.ClientSession() as client:
        asked = [
            asyncio.create_task(client.get(f"{world.inside_url}/demand?after=0&wait=30")) for _ in range(MOST_QUESTIONS)
        ]
        while len(questions) < MOST_QUESTIONS:
            await asyncio.sleep(0)
        async with world.inside("/demand?after=0&wait=30") as response:
            assert response.status == 503
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        while len(questions):
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("?after=x", "Expected `int`, got `str` - at `$.after`"),
        ("?after=-2", "Expected `int` >= -1 - at `$.after`"),
        ("?wait=31", "Expected `float` <= 30.0 - at `$.wait`"),
        ("?wait=nan", "Expected `float` >= 0.0 - at `$.wait`"),
        ("?since=3", "unknown field `since`"),
    ],
)
async def test_questions_that_make_no_sense(world: World, query: str, what: str) -> None:
    async with world.inside("/demand" + query) as response:
        assert response.status == 400
        assert what in (await response.json())["error"]["message"]


async def test_clients_of_the_api_never_reach_it(world: World) -> None:
    async with world.get("/demand") as response:
        assert response.status == 404
    async with world.client.post(world.inside_url + "/demand") as response:
        assert response.status == 405
    async with world.inside("/v1/models") as response:
        assert response.status == 404
