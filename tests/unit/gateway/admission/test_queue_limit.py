"""Requests that wait for a response are limited by model, and refusals have the reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from plimsoll_gateway.admission.queue_limit import QueueLimit, QueueTicket
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, TableStore, build_table
from plimsoll_gateway.errors.refusals import Refusal
from plimsoll_gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

MOST = 3
"""As in the fixture `world`."""


def model(name: str, *replicas: object) -> Model:
    return Model(ObjectKey("ns", name), (name,), 1000.0, "", replicas)  # type: ignore[arg-type]


class QueueLimits(RuleBasedStateMachine):
    """Requests come and go in any order, some of them twice."""

    places = Bundle("places")

    def __init__(self) -> None:
        super().__init__()
        self.metrics = Metrics(TableStore())
        self.limit = QueueLimit(MOST, self.metrics)
        self.models = {name: model(name) for name in "ab"}
        self.inside = dict.fromkeys("ab", 0)
        self.refused = dict.fromkeys("ab", 0)

    @rule(target=places, name=st.sampled_from("ab"))
    def enter(self, name: str) -> tuple[str, QueueTicket | None]:
        if self.inside[name] < MOST:
            self.inside[name] += 1
            return name, self.limit.enter(self.models[name], name)
        self.refused[name] += 1
        with pytest.raises(Refusal, match=f"The model '{name}' is overloaded: {MOST} requests already wait"):
            self.limit.enter(self.models[name], name)
        return name, None

    @rule(taken=consumes(places), begun=st.booleans())
    def leave(self, taken: tuple[str, QueueTicket | None], begun: bool) -> None:
        name, ticket = taken
        if ticket is None:
            return
        with ticket:
            if begun:
                ticket.leave()
        self.inside[name] -= 1

    @invariant()
    def counts(self) -> None:
        self.limit.check_integrity()
        for name, each in self.models.items():
            assert self.limit.waiting(each) == self.inside[name]
            assert self.metrics.refused.labels("ns", name)._value.get() == self.refused[name]


TestRooms = QueueLimits.TestCase
TestRooms.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_no_more_wait_than_the_replicas_can_be_expected_to_answer() -> None:
    places: int | None = None
    limit = QueueLimit(100, Metrics(TableStore()), lambda _: places)
    entered = [limit.enter(model("a"), "a") for _ in range(100)]
    with pytest.raises(Refusal, match=r"100 requests already wait .* \(--max-waiting\)"):
        limit.enter(model("a"), "a")
    places = 1
    for ticket in entered[:37]:
        ticket.leave()
    entered.append(limit.enter(model("a"), "a"))
    with pytest.raises(Refusal, match=r"64 requests already wait .* \(64 for each sequence that the replicas batch\)"):
        limit.enter(model("a"), "a")
    places = 2
    limit.enter(model("a"), "a")


async def test_more_than_may_wait_are_refused(world: World, ok: Behaviour) -> None:
    """Waiting requests get their responses, and another model is not affected."""
    arrived: asyncio.Queue[Request] = asyncio.Queue()
    full, free = world.replica(await world.upstream(arrived.put)), world.replica(await world.upstream(ok))
    world.store.replace(build_table([model("m", full), model("free", free)]))
    waiting = [asyncio.create_task(ask(world, "m")) for _ in range(MOST)]
    held = [await arrived.get() for _ in range(MOST)]
    async with world.post() as response:
        assert (response.status, response.headers["retry-after"]) == (503, "5")
        error = (await response.json())["error"]
    assert error == {
        "message": "The model 'm' is overloaded: 3 requests already wait for a response here, which is the limit "
        "(--max-waiting). Try again in some seconds.",
        "type": "server_error",
        "param": None,
        "code": "overloaded",
    }
    assert await world.metric('plimsoll_gateway_refused_total{model="m",namespace="ns"}') == 1
    assert await world.metric('plimsoll_gateway_requests_total{code="503",model="m",namespace="ns"}') == 1
    assert (await ask(world, "free"))[0] == 200
    for request in held:
        request.respond(200, "done")
    assert [await task for task in waiting] == [(200, "done")] * MOST


@pytest.mark.parametrize("how", ["begins", "breaks", "client"])
async def test_a_place_is_free_when_an_answer_begins_or_never_will(world: World, how: str) -> None:
    """It begins, however long it takes after that. It breaks twice: the second attempt keeps the same ticket."""
    arrived: asyncio.Queue[Request] = asyncio.Queue()
    await world.model(arrived.put)
    waiting = [asyncio.create_task(ask(world, "m")) for _ in range(MOST)]
    held = [await arrived.get() for _ in range(MOST)]
    if how == "begins":
        held[0].begin()
        held[0].chunk("so far")
    elif how == "breaks":
        held[0].die()
        again = await arrived.get()
        assert (await ask(world, "m"))[0] == 503
        again.die()
    else:
        for task in waiting:
            task.cancel()
        async with asyncio.timeout(60):
            for request in held:
                await request.hung_up.wait()
    late = asyncio.create_task(ask(world, "m"))
    async with asyncio.timeout(60):
        request = await arrived.get()
    request.respond(200, "late")
    assert await late == (200, "late")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def ask(world: World, name: str) -> tuple[int, str]:
    """Return status and text of a response."""
    async with world.post({"model": name}) as response:
        return response.status, await response.text()
