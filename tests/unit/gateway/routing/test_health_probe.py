"""Replicas that accept requests and do not respond are found, ejected and readmitted; slow ones are not affected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from plimsoll_gateway.client.errors import ConnectTimeoutError
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, TableStore, build_table
from plimsoll_gateway.proxy import replica_proxy, upstream_request
from plimsoll_gateway.routing import health_probe
from plimsoll_gateway.routing.health_probe import AGAIN_SECONDS, MISSES, QUIET_SECONDS, Prober, SilentError
from plimsoll_gateway.routing.pick import Picker
from plimsoll_gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

    from plimsoll_gateway.client.pool import Pool
    from plimsoll_gateway.client.response import Response
    from plimsoll_gateway.proxy.upstream_request import Call

ONE, TWO = Replica("1", "http://one", True), Replica("2", "http://two", True)
MODEL = Model(ObjectKey("ns", "m"), ("m",), 1000.0, "", (ONE, TWO))


class Place:
    """A prober with a fake clock, and replicas whose health the test sets."""

    def __init__(self) -> None:
        self.now = 50.0
        self.alive: set[str] = set()
        self.asked: list[str] = []
        self.store = TableStore()
        self.store.replace(build_table([MODEL]))
        self.picker = Picker()
        self.metrics = Metrics(self.store)
        self.prober = Prober(self._ask, self.store, self.picker, self.metrics, lambda: self.now)

    async def _ask(self, replica: Replica) -> bool:
        self.asked.append(replica.id)
        return replica.id in self.alive

    async def wait(self, seconds: float) -> list[str]:
        """Advance the clock, and return the replicas that are probed."""
        self.now += seconds
        self.asked.clear()
        for vigil in self.prober.due():
            await self.prober.question(vigil)
        self.prober.check_integrity()
        return self.asked

    @asynccontextmanager
    async def request(self, replica: Replica) -> AsyncIterator[asyncio.Task[str]]:
        """A request that waits for its response; cancelled at the end of the block."""

        async def waiting() -> str:
            try:
                with self.prober.listen(replica, MODEL):
                    await asyncio.Event().wait()
            except SilentError:
                return "silent"
            raise AssertionError("nothing answers here")

        task = asyncio.create_task(waiting())
        await asyncio.sleep(0)
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.prober.check_integrity()

    def picked(self) -> set[str]:
        """Return the replicas that are picked in turn."""
        return {replica.id for _ in range(4) if (replica := self.picker.pick((ONE, TWO))) is not None}

    @property
    def ejections(self) -> float:
        value: float = self.metrics.ejections.labels("ns", "m")._value.get()
        return value


@pytest.fixture
async def place() -> Place:
    return Place()


async def test_a_replica_is_asked_only_while_requests_wait_in_silence(place: Place) -> None:
    place.alive = {"1"}
    assert await place.wait(1000) == []
    async with place.request(ONE) as waiting:
        assert await place.wait(QUIET_SECONDS - 1) == []
        assert await place.wait(1) == ["1"]
        assert await place.wait(QUIET_SECONDS - 1) == []  # it has responded: the silence starts again
        assert await place.wait(1) == ["1"]
        assert not waiting.done()
    assert await place.wait(1000) == []
    assert place.ejections == 0


async def test_an_answer_to_anybody_ends_the_silence(place: Place) -> None:
    async with place.request(ONE):
        place.now += QUIET_SECONDS - 1
        with place.prober.listen(ONE, MODEL):
            pass
        assert await place.wait(QUIET_SECONDS - 1) == []
        assert await place.wait(1) == ["1"]


async def test_a_replica_that_misses_all_questions_is_ejected_and_its_requests_end(place: Place) -> None:
    place.alive = {"2"}
    async with place.request(ONE) as first, place.request(ONE) as second, place.request(TWO) as other:
        assert await place.wait(QUIET_SECONDS) == ["1", "2"]
        for _ in range(MISSES - 2):
            assert await place.wait(1) == ["1"]
            assert place.picked() == {"1", "2"}
        assert await place.wait(1) == ["1"]
        async with asyncio.timeout(60):
            assert (await first, await second) == ("silent", "silent")
        assert not other.done()
    assert place.picked() == {"2"}
    assert place.ejections == 1
    assert await place.wait(AGAIN_SECONDS - 1) == []
    assert await place.wait(1) == ["1"]  # although no request waits for it
    assert place.picked() == {"2"}
    place.alive.add("1")
    assert await place.wait(AGAIN_SECONDS) == ["1"]
    assert place.picked() == {"1", "2"}
    assert await place.wait(1000) == []


async def test_a_client_who_hangs_up_as_the_replica_is_ejected_is_what_ends_the_request(place: Place) -> None:
    async with place.request(ONE) as waiting:
        (vigil,) = place.prober._vigils.values()
        vigil.expire()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()


async def test_one_miss_proves_nothing(place: Place) -> None:
    async with place.request(ONE) as waiting:
        for _ in range(3):
            place.alive = set()
            await place.wait(QUIET_SECONDS)
            for _ in range(MISSES - 2):
                await place.wait(1)
            place.alive = {"1"}
            await place.wait(1)
        assert not waiting.done()
    assert place.ejections == 0


async def test_an_answer_during_the_question_counts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(replica: Replica) -> bool:
        place.now += 5
        with place.prober.listen(replica, MODEL):
            return False

    monkeypatch.setattr(place.prober, "_ask", ask)
    async with place.request(ONE) as waiting:
        for _ in range(2 * MISSES):
            await place.wait(QUIET_SECONDS)
        assert not waiting.done()


async def test_what_waits_for_an_ejected_replica_ends_at_the_next_miss(place: Place) -> None:
    """If all are ejected, requests are still sent; they must not wait forever either."""
    place.prober.eject(ONE, MODEL)
    place.prober.eject(TWO, MODEL)
    assert place.picked() == {"1", "2"}
    async with place.request(ONE) as waiting:
        for _ in range(MISSES):
            assert not waiting.done()
            await place.wait(AGAIN_SECONDS)
        async with asyncio.timeout(60):
            assert await waiting == "silent"


async def test_an_answer_to_a_last_resort_readmits(place: Place) -> None:
    place.prober.eject(ONE, MODEL)
    assert place.picked() == {"2"}
    with place.prober.listen(ONE, MODEL):
        pass
    assert place.picked() == {"1", "2"}
    assert await place.wait(1000) == []


async def test_a_replica_that_is_gone_is_forgotten(place: Place) -> None:
    place.prober.eject(ONE, MODEL)
    place.store.replace(build_table([]))
    assert await place.wait(1000) == []
    place.store.replace(build_table([MODEL]))
    assert await place.wait(1000) == []


@pytest.fixture
async def probing(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """The real prober with short times."""
    monkeypatch.setattr(health_probe, "QUIET_SECONDS", 0.02)
    monkeypatch.setattr(health_probe, "AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(health_probe, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(upstream_request, "HEALTH_SECONDS", 0.05)
    watching = asyncio.create_task(world.gateway.watch_replicas())
    yield world
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def hang(request: Request) -> None:
    """Accept everything and send nothing."""


async def test_a_request_to_a_replica_that_hangs_is_asked_of_another(probing: World, ok: Behaviour) -> None:
    world = probing
    hung = await world.model(hang)
    first = asyncio.create_task(ask(world))
    async with asyncio.timeout(60):
        while not hung.requests:
            await asyncio.sleep(0)
        good = await world.upstream(ok)
        world.show(Replica("r0", f"http://127.0.0.1:{hung.port}", True), world.replica(good))
        assert await first == 200
    asked = [request.line for request in hung.requests]
    assert asked[0].startswith("POST ")
    assert set(asked[1:]) == {"GET /health HTTP/1.1"}
    assert await world.metric('plimsoll_gateway_retries_total{model="m",namespace="ns",reason="silent"}') == 1
    assert await world.metric('plimsoll_gateway_ejections_total{model="m",namespace="ns"}') == 1
    for _ in range(4):
        assert await ask(world) == 200
    assert not any(request.line.startswith("POST") for request in hung.requests[1:])


async def test_a_replica_that_hangs_alone_is_a_502(probing: World) -> None:
    await probing.model(hang)
    async with asyncio.timeout(60), probing.post() as response:
        assert response.status == 502
        message = (await response.json())["error"]["message"]
    assert message.endswith("it accepted the request but did not respond, and its health check fails.")


async def test_a_replica_that_takes_its_time_is_left_in_peace(probing: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_request, "HEALTH_SECONDS", 60)  # all probes are answered
    questions = 0
    enough = asyncio.Event()

    async def behave(request: Request) -> None:
        nonlocal questions
        if request.line.startswith("GET /health "):
            questions += 1
            request.respond(503, "loading or draining is alive, too")
            if questions == 2 * MISSES:
                enough.set()
            return
        await enough.wait()
        request.respond(200, "{}")

    await probing.model(behave)
    async with asyncio.timeout(60):
        assert await ask(probing) == 200
    assert await probing.metric('plimsoll_gateway_ejections_total{model="m",namespace="ns"}') == 0


async def test_a_replica_that_takes_no_connection_in_time_is_ejected(
    world: World, ok: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request waits in vain for 5 s; the next ones must not."""
    asked: list[str] = []

    async def send(pool: Pool, replica: Replica, call: Call, span: object = None) -> Response:
        asked.append(replica.id)
        if replica.id == "black hole":
            raise ConnectTimeoutError
        return await upstream_request.send(pool, replica, call)

    monkeypatch.setattr(replica_proxy, "send", send)
    good = world.replica(await world.upstream(ok))
    world.show(Replica("black hole", "http://127.0.0.1:9", True), good)
    for _ in range(4):
        assert await ask(world) == 200
    assert asked.count("black hole") == 1
    assert await world.metric('plimsoll_gateway_ejections_total{model="m",namespace="ns"}') == 1


async def ask(world: World) -> int:
    """Return the status of a response."""
    async with world.post() as response:
        return response.status
