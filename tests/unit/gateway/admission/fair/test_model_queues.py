"""Model queues admit as many requests as fit, in fair order, and lose none however clients come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from operator_support.virtual_time import VirtualTimeLoop, run

from plimsoll_gateway.admission.fair.fair_queue import Share
from plimsoll_gateway.admission.fair.model_queue import WAITING_PER_PLACE
from plimsoll_gateway.admission.fair.model_queues import ModelQueues
from plimsoll_gateway.discovery.routing_table import ObjectKey
from plimsoll_gateway.errors.refusals import Refusal

KEY = ObjectKey("ns", "m")
PATIENCE = 300.0
A, B, HIGH = Share("a"), Share("b"), Share("high", priority=1)


class World:
    """Queues of one model whose capacity a test sets.

    Of the capacity, replicas that serve "new" have `renewed` (None: all of it); if `apart`, those serve no other name.
    """

    def __init__(self, capacity: int | None, most: int = 1000) -> None:
        self.capacity = capacity
        self.renewed: int | None = None
        self.apart = False
        self.coming = 1
        self.held = 0
        self.model_queues = ModelQueues(self, most, PATIENCE, self.count)

    def now(self, name: str) -> int | None:
        if name != "new" or self.capacity is None or self.renewed is None:
            return self.capacity
        return min(self.capacity, self.renewed)

    def together(self, names: Collection[str]) -> int:
        each = [self.now(name) or 0 for name in names]
        return sum(each) if self.apart else max(each, default=0)

    def closed(self, name: str) -> bool:
        return self.now(name) == 0

    def later(self, _: str) -> int:
        return self.coming

    def count(self, key: ObjectKey, change: int) -> None:
        assert key == KEY
        self.held += change

    def come(
        self, share: Share | None, cost: int = 10, name: str = "m"
    ) -> tuple[asyncio.Task[None], asyncio.Event, asyncio.Event]:
        """Start a request. Returns its task, the event of its admission, and the event that ends it."""
        inside, end = asyncio.Event(), asyncio.Event()

        async def run() -> None:
            async with self.model_queues.enter(KEY, name, share, cost):
                inside.set()
                await end.wait()

        return asyncio.get_running_loop().create_task(run()), inside, end


async def settle() -> None:
    """Let all tasks run as far as they can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_as_many_as_fit_are_let_in_and_the_next_when_one_ends() -> None:
    world = World(2)
    come = [world.come(A) for _ in range(4)]
    await settle()
    assert [inside.is_set() for _, inside, _ in come] == [True, True, False, False]
    assert world.model_queues.waiting(KEY) == 2
    come[1][2].set()
    await settle()
    assert [inside.is_set() for _, inside, _ in come] == [True, True, True, False]
    for _, _, end in come:
        end.set()
    await asyncio.gather(*(task for task, _, _ in come))
    assert world.model_queues.waiting(KEY) == 0
    world.model_queues.check_integrity()


async def test_a_name_that_no_replica_answers_to_holds_up_no_other() -> None:
    """A pod created before a name was added does not serve it."""

    class Known:
        def now(self, name: str) -> int:
            return int(name == "old")

        def together(self, names: Collection[str]) -> int:
            return int("old" in names)

        def later(self, _: str) -> int:
            return 1

    held = 0

    def count(key: ObjectKey, change: int) -> None:
        nonlocal held
        assert key == KEY
        held += change

    model_queues = ModelQueues(Known(), 1000, PATIENCE, count)
    passed: list[str] = []

    async def ask(name: str, share: Share | None) -> None:
        async with model_queues.enter(KEY, name, share, 10):
            passed.append(name)

    waits = asyncio.create_task(ask("new", A))
    await settle()
    for share in (A, None):
        await ask("old", share)
    model_queues.check_integrity()
    assert (passed, held, model_queues.waiting(KEY)) == (["old", "old"], 1, 1)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    assert (held, model_queues.waiting(KEY)) == (0, 0)


async def test_by_all_names_together_a_model_is_asked_for_what_its_replicas_take() -> None:
    world = World(3)
    come = [world.come(A, name=name) for name in ("m", "new", "other") * 2]
    await settle()
    assert [inside.is_set() for _, inside, _ in come] == [True] * 3 + [False] * 3
    come[1][2].set()
    await settle()
    assert [inside.is_set() for _, inside, _ in come] == [True] * 4 + [False] * 2, "the order is by key, not by name"
    world.model_queues.check_integrity()
    for _, _, end in come:
        end.set()
    await asyncio.gather(*(task for task, _, _ in come))
    assert world.model_queues._queues == {}


async def test_a_key_that_asks_by_two_names_gets_no_second_share() -> None:
    world = World(1)
    first = world.come(HIGH)
    await settle()
    double = [world.come(A, name=name) for name in ("m", "new") * 4]
    single = [world.come(B) for _ in range(8)]
    ends = [*double, *single]
    for _ in range(8):
        await settle()
        (inside,) = [one for one in [first, *ends] if one[1].is_set() and not one[0].done()]
        inside[2].set()
    await settle()
    assert sum(task.done() for task, _, _ in double) in (3, 4)
    for task, _, _ in ends:
        task.cancel()
    await asyncio.gather(first[0], *(task for task, _, _ in ends), return_exceptions=True)
    assert world.model_queues._queues == {}


async def test_a_name_that_few_replicas_answer_to_yet_lets_in_what_those_take() -> None:
    world = World(4)
    world.renewed = 1
    come = [world.come(A, name="new") for _ in range(3)]
    old = [world.come(B) for _ in range(4)]
    await settle()
    assert [inside.is_set() for _, inside, _ in [*come, *old]] == [True, False, False, True, True, True, False]
    world.renewed = 3
    old[0][2].set()
    world.model_queues.wake()
    await settle()
    assert sum(inside.is_set() for _, inside, _ in [*come, *old[1:]]) == 4
    world.model_queues.check_integrity()
    for _, _, end in [*come, *old]:
        end.set()
    await asyncio.gather(*(task for task, _, _ in [*come, *old]))


async def test_who_asks_replicas_that_are_free_goes_in_however_many_wait_for_others() -> None:
    world = World(1)
    world.renewed, world.apart = 1, True
    first = [world.come(A), world.come(A, name="new")]
    waiting = [world.come(A) for _ in range(2 * WAITING_PER_PLACE)]
    await settle()
    assert world.model_queues.waiting(KEY) == 2 * WAITING_PER_PLACE
    first[1][2].set()
    await settle()
    again = world.come(A, name="new")
    await settle()
    assert again[1].is_set()
    left = [task for task, _, _ in [*first, *waiting, again]]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert world.model_queues._queues == {}


async def test_what_is_held_by_one_name_takes_no_room_from_another() -> None:
    world = World(1)
    world.renewed = 0
    held = [world.come(A, name="new") for _ in range(WAITING_PER_PLACE)]
    await settle()
    waiting = [world.come(A) for _ in range(WAITING_PER_PLACE + 1)]
    await settle()
    assert not any(task.done() for task, _, _ in [*held, *waiting])
    for name in ("m", "new"):
        with pytest.raises(Refusal, match=f"'{name}' is overloaded"):
            await world.come(A, name=name)[0]
    victims = [world.come(B, name=name) for name in ("m", "new")]
    await settle()
    for (task, _, _), name in ((waiting[-1], "m"), (held[-1], "new")):
        with pytest.raises(Refusal, match=f"'{name}' is overloaded"):
            await task
    assert world.held == WAITING_PER_PLACE
    left = [task for task, _, _ in [*held, *waiting, *victims]]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert (world.held, world.model_queues._queues) == (0, {})


async def test_nobody_in_particular_always_passes() -> None:
    """Requests held under another name do not block it."""
    world = World(1)
    world.renewed = 0
    held = world.come(None, name="new")
    await settle()
    come = [world.come(None) for _ in range(3)]
    await settle()
    assert all(inside.is_set() for _, inside, _ in come)
    assert not held[1].is_set()
    for task, _, end in [*come, held]:
        world.renewed = None
        end.set()
        await task


async def test_replicas_that_come_let_more_in_and_where_none_is_left_all_hear_it() -> None:
    world = World(1)
    come = [world.come(A) for _ in range(5)]
    await settle()
    world.capacity = 3
    world.model_queues.wake()
    await settle()
    assert sum(inside.is_set() for _, inside, _ in come) == 3
    world.capacity = None
    world.model_queues.wake()
    await settle()
    assert all(inside.is_set() for _, inside, _ in come)
    for task, _, end in come:
        end.set()
        await task


async def test_a_client_that_goes_leaves_its_place_to_the_next() -> None:
    """While waiting, while running, and between admission and its next step."""
    world = World(1)
    first, waits, goes, last = (world.come(A) for _ in range(4))
    await settle()
    waits[0].cancel()
    await settle()
    assert world.model_queues.waiting(KEY) == 2
    first[2].set()
    await asyncio.sleep(0)  # `first` ends and `goes` is admitted, but has not run yet
    goes[0].cancel()
    await settle()
    assert last[1].is_set()
    assert not goes[1].is_set()
    last[2].set()
    await last[0]
    world.model_queues.check_integrity()
    assert world.model_queues.waiting(KEY) == 0


async def test_whoever_has_most_waiting_gives_way_to_others() -> None:
    world = World(1)
    room = WAITING_PER_PLACE
    greedy = [world.come(A) for _ in range(room + 1)]
    await settle()
    assert world.model_queues.waiting(KEY) == room
    own = world.come(A)
    other = world.come(B)
    await settle()
    with pytest.raises(Refusal) as refused:
        await own[0]
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    with pytest.raises(Refusal, match="this API key has the most requests"):
        await greedy[-1][0]
    assert world.model_queues.waiting(KEY) == room
    greedy[0][2].set()
    await settle()
    assert greedy[1][1].is_set() != other[1].is_set()
    for task, _, _ in [*greedy[:-1], other]:
        task.cancel()
    await asyncio.gather(*(task for task, _, _ in [*greedy[:-1], other]), return_exceptions=True)
    world.model_queues.check_integrity()


async def test_the_least_room_is_what_the_gateway_can_hold() -> None:
    world = World(100, most=3)
    inside = [world.come(A) for _ in range(100)]
    await settle()
    waiting = [world.come(A) for _ in range(4)]
    await settle()
    assert [task.done() for task, _, _ in waiting] == [False, False, False, True]
    tasks = [task for task, _, _ in [*inside, *waiting]]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_closed_gate_holds_everybody_and_opens_in_fair_order() -> None:
    """One key queued ten requests first; of the four admitted then, two are the other key's."""
    world = World(0)
    greedy = [world.come(A) for _ in range(10)]
    modest = [world.come(B) for _ in range(2)]
    await settle()
    assert world.held == 12
    assert not any(inside.is_set() for _, inside, _ in [*greedy, *modest])
    world.capacity = 4
    world.model_queues.wake()
    await settle()
    assert world.held == 0
    assert sum(inside.is_set() for _, inside, _ in greedy) == 2
    assert all(inside.is_set() for _, inside, _ in modest)
    for _, _, end in [*greedy, *modest]:
        end.set()
        await settle()
    await asyncio.gather(*(task for task, _, _ in [*greedy, *modest]))
    assert world.model_queues._queues == {}


async def test_without_keys_a_burst_after_a_wake_is_let_in_as_it_came_and_as_far_as_there_is_room() -> None:
    world = World(0)
    come = [world.come(None) for _ in range(5)]
    await settle()
    world.capacity = 2
    world.model_queues.wake()
    late = world.come(None)
    await settle()
    assert [inside.is_set() for _, inside, _ in come] == [True, True, False, False, False]
    assert not late[1].is_set(), "later requests queue behind them"
    for task, inside, end in come:
        assert inside.is_set()
        end.set()
        await task
        await settle()
    assert late[1].is_set()
    passes = world.come(None), world.come(None)
    await settle()
    assert all(inside.is_set() for _, inside, _ in passes), "if no request waits, all pass"
    for task, _, end in [late, *passes]:
        end.set()
        await task


async def test_a_held_request_whose_client_goes_counts_for_nothing() -> None:
    world = World(0)
    come = [world.come(share) for share in (A, None, B)]
    await settle()
    assert world.held == 3
    for task, _, _ in come:
        task.cancel()
    await asyncio.gather(*(task for task, _, _ in come), return_exceptions=True)
    assert world.held == 0
    assert world.model_queues._queues == {}


async def test_as_many_are_held_as_the_replicas_to_come_can_be_expected_to_answer() -> None:
    world = World(0)
    world.coming = 2
    held = [world.come(A) for _ in range(2 * WAITING_PER_PLACE)]
    await settle()
    assert world.held == 2 * WAITING_PER_PLACE
    with pytest.raises(Refusal, match="overloaded"):
        await world.come(A)[0]
    for task, _, _ in held:
        task.cancel()
    await asyncio.gather(*(task for task, _, _ in held), return_exceptions=True)


def test_who_is_held_for_too_long_goes_on_to_hear_why() -> None:
    """The time is counted for each request, and restarts if an open queue closes."""

    async def story() -> None:
        world = World(1)
        loop = asyncio.get_running_loop()
        inside, waiting = world.come(A), world.come(A)
        await asyncio.sleep(10 * PATIENCE)
        assert not waiting[1].is_set(), "waiting in an open queue does not count as hold time"
        world.capacity = 0
        world.model_queues.wake()
        assert world.held == 1
        closed = loop.time()
        await asyncio.sleep(PATIENCE / 2)
        late = world.come(B)
        await waiting[1].wait()
        assert loop.time() == closed + PATIENCE
        assert world.held == 1
        assert not late[1].is_set()
        await late[1].wait()
        assert loop.time() == closed + PATIENCE * 1.5
        world.model_queues.check_integrity()
        for task, _, end in (inside, waiting, late):
            end.set()
            await task
        assert (world.held, world.model_queues._queues) == (0, {})

    run(story())


class GateMachine(RuleBasedStateMachine):
    """Requests arrive, are admitted, cancelled and ended in any order, and the capacity changes."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.world = World(2, most=8)
        self.tasks: list[tuple[asyncio.Task[None], asyncio.Event, asyncio.Event]] = []
        self.most_inside = {"m": 2, "new": 2, "": 2}

    def teardown(self) -> None:
        for task, _, _ in self.tasks:
            task.cancel()
        self.loop.run_until_complete(self._gather())
        assert self.world.model_queues._queues == {}, "a queue without requests is removed"
        self.loop.close()

    async def _gather(self) -> None:
        await asyncio.gather(*(task for task, _, _ in self.tasks), return_exceptions=True)

    async def _come(self, share: Share, cost: int, name: str) -> None:
        self.tasks.append(self.world.come(share, cost, name))

    def _inside(self) -> int:
        return sum(inside.is_set() and not task.done() for task, inside, _ in self.tasks)

    @rule(share=st.sampled_from([A, B, HIGH]), cost=st.integers(0, 100), name=st.sampled_from(["m", "new"]))
    def come(self, share: Share, cost: int, name: str) -> None:
        self.loop.run_until_complete(self._come(share, cost, name))

    @rule(turns=st.integers(1, 4))
    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.loop.run_until_complete(asyncio.sleep(0))

    @rule(data=st.data(), cancel=st.booleans())
    def end(self, data: st.DataObject, cancel: bool) -> None:
        if self.tasks:
            task, _, end = data.draw(st.sampled_from(self.tasks))
            if cancel:
                task.cancel()
            else:
                end.set()

    @rule(capacity=st.sampled_from([0, 1, 2, 3]), renewed=st.sampled_from([None, None, 0, 1]))
    def change(self, capacity: int, renewed: int | None) -> None:
        self.loop.run_until_complete(self._change(capacity, renewed))

    async def _change(self, capacity: int, renewed: int | None) -> None:
        self.world.capacity, self.world.renewed = capacity, renewed
        self._note_bounds(self.most_inside)
        self.world.model_queues.wake()

    def _note_bounds(self, before: dict[str, int]) -> None:
        """Update the most running requests: as many as before, or as are allowed, by each name and by both."""
        bounds = {name: self.world.now(name) or 0 for name in ("m", "new")}
        bounds[""] = self.world.together(("m", "new"))
        self.most_inside = {name: max(bound, before[name]) for name, bound in bounds.items()}

    def _running(self) -> dict[str, int]:
        """Return the running requests by name, and of both."""
        model_queue = self.world.model_queues._queues.get(KEY)
        found = {
            name: model_queue.lanes[name].running if model_queue and name in model_queue.lanes else 0
            for name in ("m", "new")
        }
        return {**found, "": sum(found.values())}

    def _closed(self) -> list[str]:
        return [name for name in ("m", "new") if self.world.closed(name)]

    def _waiting(self, names: list[str]) -> int:
        model_queue = self.world.model_queues._queues.get(KEY)
        return 0 if model_queue is None else model_queue.queue.waiting(names)

    @rule(seconds=st.sampled_from([PATIENCE / 2, PATIENCE]))
    def pass_time(self, seconds: float) -> None:
        """All requests held for long enough proceed, and no others."""
        self.loop.run_until_complete(settle())
        closed, open_ = self._closed(), [name for name in ("m", "new") if not self.world.closed(name)]
        before = self._waiting(open_)
        self.loop.run_until_complete(asyncio.sleep(seconds))
        if closed:
            assert seconds < PATIENCE or not self._waiting(closed)
            self._note_bounds({name: max(n, self.most_inside[name]) for name, n in self._running().items()})
        assert self._waiting(open_) == before

    @invariant()
    def holds(self) -> None:
        self.world.model_queues.check_integrity()
        assert self.world.held == self._waiting(self._closed())
        running = self._running()
        assert self._inside() <= running[""]
        assert all(running[name] <= most for name, most in self.most_inside.items())
        self._note_bounds(running)
        for task, _, _ in self.tasks:
            if task.done() and not task.cancelled():
                assert task.exception() is None or isinstance(task.exception(), Refusal)


TestGate = GateMachine.TestCase
TestGate.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


async def test_what_an_answer_cost_counts_against_its_key() -> None:
    """Both estimated 10; one used 1000. The other key's next requests go first."""
    world = World(1)
    order: list[str] = []

    async def ask(share: Share, cost: int) -> None:
        async with world.model_queues.enter(KEY, "m", share, 10) as turn:
            turn.cost = cost
            order.append(share.flow)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.model_queues.enter(KEY, "m", HIGH, 1))
        tasks = [asyncio.ensure_future(ask(share, cost)) for share, cost in
                 [(A, 1000), (A, 10), (A, 10), (B, 10), (B, 10), (B, 10)]]  # fmt: skip
        await settle()
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "b", "b", "a", "a"]
