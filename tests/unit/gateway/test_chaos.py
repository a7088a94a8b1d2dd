"""Whatever the table does under many clients, each request ends once, nothing is sent twice, and nothing is left
over.

Sockets and clients are real; actions are drawn at random. The order of events between two actions is the machine's, so
that runs differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plimsoll_gateway.admission.limits import Limits
from plimsoll_gateway.keys.api_key import ApiKey, KeyLimits
from plimsoll_gateway.keys.key_folder import Keys
from plimsoll_gateway.keys.keyring import Keyring
from plimsoll_gateway.keys.secret import digest_of, new_key
from plimsoll_gateway.proxy.body import Body
from plimsoll_gateway.proxy.keepalive_comments import COMMENT

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

RunWorld = Callable[..., contextlib.AbstractAsyncContextManager[Any]]
KEYS = {name: new_key() for name in ("a", "b")}
DONE = "[DONE]"
MANNERS = ("answers", "waits", "dies at once", "dies within", "is unavailable", "has lost it")

ACTIONS = st.one_of(
    st.tuples(st.just("ask"), st.booleans(), st.sampled_from(sorted(KEYS))),
    st.tuples(st.just("ask"), st.booleans(), st.sampled_from(sorted(KEYS))),
    st.tuples(st.just("hang up"), st.integers(0, 99)),
    st.tuples(st.just("start"), st.sampled_from(MANNERS)),
    st.tuples(st.just("remove"), st.integers(0, 99)),
    st.tuples(st.just("kill"), st.integers(0, 99)),
    st.tuples(st.just("release")),
    st.tuples(st.just("zero")),
    st.tuples(st.just("stop")),
    st.tuples(st.just("rest"), st.integers(1, 30)),
)


@dataclass
class Asked:
    """The result of one client. `error`: the code of its refusal. `nonces`: those of the attempts whose responses it
    got.
    """

    id: str
    streams: bool
    status: int | None = None
    error: str = ""
    nonces: list[str] = field(default_factory=list)
    finished: bool = False
    broken: bool = False


class Chaos:
    """Replicas that come and go, and the clients."""

    def __init__(self, world: World, keyed: bool, fields: dict[str, Any]) -> None:
        self.world = world
        self.keyed = keyed
        self.fields = fields
        self.log: list[tuple[str, str]] = []  # requests to replicas: the request's id, and the attempt's own
        self.released = asyncio.Event()
        self.replicas: list[tuple[Any, Any]] = []
        self.clients: list[tuple[asyncio.Task[None], Asked]] = []
        self.scaled = True

    async def act(self, action: Sequence[Any]) -> None:
        match action:
            case ("ask", streams, key):
                asked = Asked(f"r{len(self.clients)}", streams)
                self.clients.append((asyncio.create_task(self.ask(asked, key)), asked))
            case ("hang up", index) if self.clients:
                self.clients[index % len(self.clients)][0].cancel()
            case ("start", manner):
                upstream = await self.world.upstream(self.behaviour(manner))
                self.replicas.append((upstream, self.world.replica(upstream)))
                self.show(scaled=True)
            case ("remove", index) if self.replicas:
                self.replicas.pop(index % len(self.replicas))
                self.show()
            case ("kill", index) if self.replicas:
                await self.replicas[index % len(self.replicas)][0].stop()
            case ("release",):
                self.released.set()
                self.released = asyncio.Event()
            case ("zero",):
                self.replicas.clear()
                self.show(scaled=True)
            case ("stop",):
                self.replicas.clear()
                self.show(scaled=False)
            case ("rest", rounds):
                for _ in range(rounds):
                    await asyncio.sleep(0)

    def show(self, scaled: bool | None = None) -> None:
        self.scaled = self.scaled if scaled is None else scaled
        fields = self.fields if self.scaled else {}
        self.world.show(*(replica for _, replica in self.replicas), **fields)

    def behaviour(self, manner: str) -> Behaviour:
        async def answer(request: Request) -> None:
            nonce = str(len(self.log))
            self.log.append((request.headers["x-request-id"], nonce))
            streams = json.loads(request.body)["stream"]
            if manner == "dies at once":
                request.die()
                return
            if manner == "is unavailable":
                request.respond(503, '{"error": {"message": "draining", "code": "draining"}}')
                return
            if manner == "has lost it":
                request.respond(404, '{"error": {"message": "no such model", "code": "model_not_found"}}')
                return
            if manner == "waits":
                await self.released.wait()
            request.begin("content-type: " + ("text/event-stream" if streams else "application/json"))
            text = json.dumps({"nonce": nonce})
            request.chunk(f"data: {text}\n\n" if streams else text[:5])
            await request.writer.drain()
            await asyncio.sleep(0)
            if manner == "dies within":
                request.die()
                return
            request.chunk(f"data: {text}\n\ndata: {DONE}\n\n" if streams else text[5:])
            request.end()

        return answer

    async def ask(self, asked: Asked, key: str) -> None:
        headers = {"x-request-id": asked.id, "connection": "close"}
        if self.keyed:
            headers["authorization"] = f"Bearer {KEYS[key]}"
        async with self.world.post({"model": "m", "stream": asked.streams}, headers=headers) as response:
            asked.status = response.status
            try:
                text = (await response.read()).decode()
            except aiohttp.ClientPayloadError:
                asked.broken = True
                return
        if asked.streams and response.status == 200:
            self.read_events(asked, text)
        elif response.status == 200:
            asked.nonces.append(json.loads(text)["nonce"])
            asked.finished = True
        else:
            asked.error = json.loads(text)["error"]["code"]

    def read_events(self, asked: Asked, text: str) -> None:
        assert text.endswith("\n\n")
        for event in text.replace(COMMENT.decode(), "").split("\n\n")[:-1]:
            assert not asked.finished, "something follows the end"
            assert not asked.error, "something follows the error"
            said = event.removeprefix("data: ")
            if said == DONE:
                asked.finished = True
            elif "error" in (found := json.loads(said)):
                asked.error = found["error"]["code"]
            else:
                asked.nonces.append(found["nonce"])

    async def settle(self) -> None:
        """Start a replica that answers all waiting requests."""
        self.replicas.clear()
        await self.act(("start", "answers"))
        self.released.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*(task for task, _ in self.clients), return_exceptions=True)
            while not self.idle():
                await asyncio.sleep(0)

    def idle(self) -> bool:
        return not len(self.world.gateway._running) and all(
            not model.in_flight for model in self.world.gateway._demand.report().models
        )

    def check_ends(self) -> None:
        """Each request has one end, and its response is from one attempt, the last."""
        for task, asked in self.clients:
            attempts = [nonce for name, nonce in self.log if name == asked.id]
            assert len(attempts) <= 2, asked
            if task.cancelled():
                continue
            assert task.exception() is None, (asked, task.exception())
            ends = [asked.finished, bool(asked.error), asked.broken]
            assert sum(ends) == 1, asked
            assert len(set(asked.nonces)) <= 1, asked
            if asked.nonces:
                assert asked.nonces[0] == attempts[-1], (asked, attempts)
            if asked.error and not asked.nonces and asked.status != 200:
                assert asked.status in (404, 502, 503), asked
            assert asked.error in ("", "stream_broken", "upstream_failed", "model_not_ready", "draining",
                                   "model_not_found", "overloaded"), asked  # fmt: skip

    def check_nothing_is_left(self) -> None:
        gateway = self.world.gateway
        for part in (gateway._queues, gateway._queue_limit, gateway._body_memory, gateway._picker, gateway._demand,
                     gateway._prober, gateway._quotas):  # fmt: skip
            part.check_integrity()
        assert gateway._queues._queues == {}
        assert gateway._queue_limit._waiting == {}
        assert gateway._picker._in_flight == {}
        assert gateway._body_memory.held == 0
        for model in gateway._demand.report().models:
            assert (model.held, model.in_flight) == (0, 0)
        assert gateway._metrics.held.labels("ns", "m")._value.get() == 0
        assert gateway._metrics.in_flight.labels("ns", "m")._value.get() == 0
        gc.collect()
        assert not [one for one in gc.get_objects() if type(one) is Body], "a body outlives its request"


async def story(run_world: RunWorld, actions: Sequence[Sequence[Any]], keyed: bool, fields: dict[str, Any]) -> Chaos:
    options: dict[str, Any] = {}
    if keyed:
        known = {str(digest_of(text.encode())): ApiKey(name, KeyLimits(hashes=())) for name, text in KEYS.items()}
        options["keyring"] = Keyring(SimpleNamespace(current=Keys(known, {})))
    before = asyncio.all_tasks()
    async with run_world(limits=Limits(hold_seconds=0.0), **options) as world:
        chaos = Chaos(world, keyed, fields)
        chaos.show()
        for action in actions:
            await chaos.act(action)
        await chaos.settle()
        chaos.check_ends()
        chaos.check_nothing_is_left()
    async with asyncio.timeout(60):
        while asyncio.all_tasks() != before:  # a task that outlives its request never ends
            await asyncio.sleep(0)
    return chaos


@pytest.mark.long
@given(
    actions=st.lists(ACTIONS, max_size=60),
    keyed=st.booleans(),
    fields=st.sampled_from([{"scales_to": 2}, {"pooled": True}]),
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_every_request_ends_once_whatever_happens(
    run_world: RunWorld, actions: list[tuple[Any, ...]], keyed: bool, fields: dict[str, Any]
) -> None:
    asyncio.run(story(run_world, actions, keyed, fields))


@pytest.mark.matrix(2)
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("fields", [{"scales_to": 2}, {"pooled": True}])
async def test_to_zero_and_back_under_load(run_world: RunWorld, keyed: bool, fields: dict[str, Any]) -> None:
    """The usual day of a small model, with replicas that respond: no request fails."""
    actions: list[tuple[Any, ...]] = []
    for _ in range(4):
        actions += [("ask", index % 2 == 0, "ab"[index % 2]) for index in range(10)]
        actions += [("rest", 20), ("start", "waits"), ("rest", 20), ("ask", True, "a"), ("start", "answers")]
        actions += [("release",), ("rest", 40), ("zero",)]
    chaos = await story(run_world, actions, keyed, fields)
    assert [asked.finished for _, asked in chaos.clients] == [True] * 44
