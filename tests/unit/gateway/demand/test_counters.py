"""The reported demand equals the events, whatever the table does in between, and totals never decrease."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plimsoll_gateway.demand.counters import MOST_GONE, MOST_REVISIONS, DemandCounters
from plimsoll_gateway.demand.records import ModelDemand
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, TableStore, build_table
from plimsoll_gateway.routing.loads import Standing

NAMES = ("a", "b")
REVISIONS = ("", "one", "two")


def key(name: str) -> ObjectKey:
    return ObjectKey("ns", name)


def model(name: str, *replicas: Replica) -> Model:
    return Model(key(name), (name,), 1000.0, "", replicas)


def replica(name: str, revision: str = "", ready: bool = True) -> Replica:
    return Replica(name, f"http://{name}", ready, revision=revision)


def standing(_: Replica) -> Standing:
    return Standing(2, 1, 8, 0.5)


class Demands(RuleBasedStateMachine):
    """Requests arrive, are held, answered and end; models and revisions come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.store = TableStore()
        self.now = 1000.0
        self.demand = DemandCounters(self.store, standing, lambda: self.now)
        self.requests: list[tuple[str, AbstractContextManager[None]]] = []
        self.asked = dict.fromkeys(NAMES, 0)
        self.held = dict.fromkeys(NAMES, 0)
        self.answers: dict[tuple[str, str], list[int]] = {}
        self.turns = 0  # changes of a model between some held requests and none

    @rule(name=st.sampled_from(NAMES))
    def ask(self, name: str) -> None:
        self.now += 1
        asking = self.demand.asking(key(name))
        asking.__enter__()
        self.requests.append((name, asking))
        self.asked[name] += 1

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.requests:
            index = data.draw(st.integers(0, len(self.requests) - 1))
            self.requests.pop(index)[1].__exit__(None, None, None)

    @rule(name=st.sampled_from(NAMES))
    def hold(self, name: str) -> None:
        self.turns += self.held[name] == 0
        self.held[name] += 1
        self.demand.held(key(name), 1)

    @rule(name=st.sampled_from(NAMES))
    def release(self, name: str) -> None:
        if self.held[name]:
            self.held[name] -= 1
            self.turns += self.held[name] == 0
            self.demand.held(key(name), -1)

    @rule(name=st.sampled_from(NAMES), revision=st.sampled_from(REVISIONS), status=st.sampled_from([200, 400, 500]))
    def answer(self, name: str, revision: str, status: int) -> None:
        counts = self.answers.setdefault((name, revision), [0, 0])
        counts[0] += 1
        counts[1] += status >= 500
        self.demand.totals(key(name), revision).answered(status)

    @rule(names=st.sets(st.sampled_from(NAMES)), revisions=st.lists(st.sampled_from(REVISIONS), max_size=4))
    def change_table(self, names: set[str], revisions: list[str]) -> None:
        pods = [replica(f"{index}", revision) for index, revision in enumerate(revisions)]
        self.store.replace(build_table([model(name, *pods) for name in names]))

    @invariant()
    def tells_what_happened(self) -> None:
        self.demand.check_integrity()
        report = self.demand.report()
        assert report.sequence == self.turns
        told = {one.name: one for one in report.models}
        for name in NAMES:
            one = told.get(name)
            if one is None:
                assert not self.asked[name]
                continue
            assert (one.held, one.asked) == (self.held[name], self.asked[name])
            assert one.in_flight == sum(name == other for other, _ in self.requests)
            for each in one.revisions:
                assert [each.requests, each.errors] == self.answers.get((name, each.revision), [0, 0])
            assert {each.revision for each in one.revisions} >= {r for n, r in self.answers if n == name}


TestDemands = Demands.TestCase
TestDemands.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def only(demand: DemandCounters) -> ModelDemand:
    (found,) = demand.report().models
    return found


def test_a_model_is_listed_once_it_was_asked_for_or_has_replicas() -> None:
    store = TableStore()
    demand = DemandCounters(store, standing)
    assert demand.report().models == ()
    store.replace(build_table([model("a")]))
    assert demand.report().models == ()
    store.replace(build_table([model("a", replica("r", "x"), replica("s", "x"), replica("t", "x", ready=False))]))
    found = only(demand)
    assert (found.asked, found.last_asked, found.in_flight) == (0, None, 0)
    (each,) = found.revisions
    assert (each.revision, each.replicas, each.running, each.waiting, each.slots, each.kv) == ("x", 2, 4, 2, 16, 0.5)


def test_what_is_long_gone_is_forgotten_and_what_runs_never() -> None:
    store = TableStore()
    demand = DemandCounters(store, standing)
    with demand.asking(key("first")):
        for index in range(MOST_GONE + 5):
            with demand.asking(key(str(index))):
                pass
        for index in range(MOST_REVISIONS + 3):
            demand.totals(key("first"), str(index)).answered(200)
        store.replace(build_table([model("first", replica("r", "0"))]))
        names = {one.name for one in demand.report().models}
        assert len(names) == MOST_GONE + 1
        assert names >= {"first", str(MOST_GONE + 4), "5"}
        assert not names & {"0", "4"}
        (first,) = (one for one in demand.report().models if one.name == "first")
        assert {each.revision for each in first.revisions} == {"0", *map(str, range(3, MOST_REVISIONS + 3))}


async def test_who_waits_for_news_hears_when_a_model_begins_to_have_requests_held() -> None:
    demand = DemandCounters(TableStore(), standing)
    waiting = asyncio.create_task(demand.changed(0, 3600))
    await asyncio.sleep(0)
    demand.totals(key("a"), "").answered(200)
    with demand.asking(key("a")):
        await asyncio.sleep(0)
        assert not waiting.done()
        demand.held(key("a"), 1)
        await waiting
    assert demand.report().sequence == 1
    second = asyncio.create_task(demand.changed(1, 3600))
    demand.held(key("a"), 1)
    demand.held(key("a"), -1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not second.done()
    demand.held(key("a"), -1)
    await second


async def test_another_process_sequence_and_the_end_are_news_too() -> None:
    demand = DemandCounters(TableStore(), standing)
    await demand.changed(99, 3600)
    waiting = asyncio.create_task(demand.changed(0, 3600))
    await asyncio.sleep(0)
    demand.end()
    await waiting
    await demand.changed(0, 3600)


async def test_without_news_the_wait_ends() -> None:
    await DemandCounters(TableStore(), standing).changed(0, 0.0)
