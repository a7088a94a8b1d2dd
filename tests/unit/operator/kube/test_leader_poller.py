"""Leaders are asked in the background, a few at a time, and no answer harms the operator."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from operator_support import virtual_time

from plimsoll_operator.kube.leader_poller import AT_ONCE, LeaderError, LeaderPoller, health_client
from plimsoll_operator.kube.leader_registry import LeaderRegistry
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.status.groups import Leader
from plimsoll_operator.status.leader_words import BadHealthError, read_words

KEY = ObjectKey("team", "m")


def leaders(count: int) -> list[Leader]:
    return [Leader(f"uid-{n}", f"m-{n}", f"198.18.0.{n}") for n in range(count)]


def health(**fields: object) -> bytes:
    return json.dumps({"status": "loading", **fields}).encode()


class World:
    """A poller with a network that the test makes up. `woken`: when which model was woken."""

    def __init__(self, answer: Callable[[str], Awaitable[bytes]]) -> None:
        self.answer = answer
        self.registry = LeaderRegistry()
        self.woken: list[tuple[float, ObjectKey]] = []
        self.asked: list[tuple[float, str]] = []
        self.poller = LeaderPoller(self.registry, self.get, self.wake)

    async def get(self, address: str) -> bytes:
        self.asked.append((asyncio.get_running_loop().time(), address))
        return await self.answer(address)

    def wake(self, key: ObjectKey) -> None:
        self.woken.append((asyncio.get_running_loop().time(), key))

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a story next to the poller; the poller must outlive it."""

        async def main() -> None:
            task = asyncio.create_task(self.poller.run())
            await story()
            assert not task.done()
            task.cancel()
            await asyncio.wait({task})

        virtual_time.run(main())


def test_a_new_leader_is_asked_at_once_and_then_every_two_seconds() -> None:
    async def answer(_: str) -> bytes:
        return health(stage="wait for member 1")

    async def story() -> None:
        await asyncio.sleep(10)
        assert world.asked == [], "there is no leader to ask"
        world.registry.follow(KEY, leaders(1))
        await asyncio.sleep(0.001)
        assert world.registry.follow(KEY, leaders(1)) == {"uid-0": "wait for member 1"}
        await asyncio.sleep(9)
        world.registry.follow(KEY, [])
        await asyncio.sleep(60)

    world = World(answer)
    world.run(story)
    assert [time for time, _ in world.asked] == [10, 12, 14, 16, 18]
    assert world.woken == [(10, KEY)]


def test_a_percentage_that_counts_up_wakes_its_model_every_five_seconds() -> None:
    async def answer(_: str) -> bytes:
        return health(stage="load", fraction=asyncio.get_running_loop().time() / 20)

    async def story() -> None:
        world.registry.follow(KEY, leaders(1))
        await asyncio.sleep(19)

    world = World(answer)
    world.run(story)
    assert [time for time, _ in world.asked] == [*range(0, 20, 2)], "each answer has new words"
    assert [time for time, _ in world.woken] == [0, 5, 10, 15]


def test_leaders_that_do_not_answer_hold_up_no_others() -> None:
    running, most = 0, 0

    async def answer(address: str) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(3600 if address != "198.18.1.1" else 0)
        finally:
            running -= 1
        return health(stage="x")

    async def story() -> None:
        world.registry.follow(ObjectKey("bad", "m"), leaders(64))
        await asyncio.sleep(120)
        world.registry.follow(KEY, [Leader("u", "m", "198.18.1.1")])
        await asyncio.sleep(2.1)
        assert world.registry.follow(KEY, [Leader("u", "m", "198.18.1.1")]) == {"u": "x"}

    world = World(answer)
    world.run(story)
    assert most == AT_ONCE
    assert {key for _, key in world.woken} == {KEY}


def test_bad_answers_are_logged_once_for_each_leader(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    turns = Counter[str]()

    async def answer(address: str) -> bytes:
        turns[address] += 1
        match turns[address] % 4:
            case 0:
                return b"<html>"
            case 1:
                raise BadHealthError("it is larger than 65536 bytes")
            case 2:
                raise LeaderError("refused")
            case _:
                raise RuntimeError("an error of the client")

    async def story() -> None:
        world.registry.follow(KEY, leaders(2))
        await asyncio.sleep(600)

    world = World(answer)
    world.run(story)
    assert min(turns.values()) > 40
    assert Counter(record.getMessage() for record in caplog.records) == Counter(
        f"team/m: the answer of the leader m-{n} is ignored: it is larger than 65536 bytes" for n in range(2)
    )
    assert world.woken == []


async def served(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
    """Return the words of a leader behind real HTTP. Raises the errors of the client."""
    app = web.Application()
    app.router.add_get("/health", handler)
    async with TestServer(app, host="127.0.0.1") as server:
        assert server.port is not None
        async with health_client(server.port) as get:
            return read_words(await get("127.0.0.1"))


async def test_a_leader_behind_real_http() -> None:
    seen: list[web.Request] = []

    async def recovering(request: web.Request) -> web.Response:
        seen.append(request)
        body = {"status": "recovering", "reason": "rank 3 was killed by signal 9", "stage": "wait for member 1"}
        return web.json_response(body, status=503)

    assert await served(recovering) == "rank 3 was killed by signal 9; wait for member 1"
    assert not {"Authorization", "Cookie"} & seen[0].headers.keys()


async def test_an_endless_answer_is_cut_off() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"[" * 4096)

    with pytest.raises(BadHealthError, match="larger than 65536 bytes"):
        await served(endless)


async def test_compressed_answers_and_redirects_are_not_followed() -> None:
    async def packed(_: web.Request) -> web.Response:
        return web.Response(body=gzip.compress(b" " * 2**24), headers={"Content-Encoding": "gzip"})

    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPFound("http://198.18.0.1/")

    for handler in (packed, elsewhere):
        with pytest.raises(BadHealthError):
            await served(handler)


async def test_a_port_that_is_closed_is_an_error_of_the_leader() -> None:
    async with health_client(1) as get:
        with pytest.raises(LeaderError):
            await get("127.0.0.1")
