"""An operator that is killed at any time: the end is the same as without kills, and nothing is loaded twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_support.pooled import POOL, Process, World, run

from plimsoll_operator.pools.pool_controller import PLACEMENT
from plimsoll_operator.spec.identity import HOST_KIND, KIND, POOL_KIND

NAMES = st.sampled_from(["a", "b", "c"])
HOSTS = 2


class Killed(BaseException):
    """The process ends here: its request was executed, but it did not get the response."""


@dataclass(frozen=True)
class Ask:
    """A write of a ModelDeployment; `weight` 0 deletes it."""

    name: str
    replicas: int
    weight: int
    length: int


@dataclass(frozen=True)
class Sleep:
    """A host puts one of its models to sleep by itself, or wakes it for a request."""

    host: int
    awake: bool


STEPS = st.lists(
    st.one_of(
        st.builds(Ask, NAMES, st.integers(0, HOSTS), st.integers(0, 2), st.sampled_from([512, 1024])),
        st.builds(Sleep, st.integers(0, HOSTS - 1), st.booleans()),
    ),
    min_size=1,
    max_size=6,
)
GAPS = st.lists(st.integers(1, 12), max_size=8)
"""Writes between two kills."""


class Story:
    """The same changes, with or without kills."""

    def __init__(self, gaps: Sequence[int]) -> None:
        self.world = World()
        self.gaps = list(gaps)
        self.left = self.gaps.pop(0) if self.gaps else 0
        self.kills = 0
        self.world.strike = self.strike
        self.world.ask_for_pool(HOSTS)
        self.process = Process(self.world)

    def strike(self) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                self.left = self.gaps.pop(0) if self.gaps else 0
                self.kills += 1
                raise Killed

    async def tell(self, steps: Sequence[Ask | Sleep]) -> dict[str, Any]:
        await self.upgrades(6)
        for step in steps:
            self.take(step)
            await self.upgrades(2)
        await self.upgrades(8)
        self.left = 0
        await self.process.settle()
        return self.end()

    async def upgrades(self, count: int) -> None:
        for _ in range(count):
            self.process.hear()
            self.process.queue.add(POOL.of(POOL_KIND))
            self.process.queue.add(POOL.of(PLACEMENT))
            try:
                await self.process.turn()
            except Killed:
                self.process = Process(self.world)
            self.check()
            self.world.proceed()
            self.world.now += 1

    def take(self, step: Ask | Sleep) -> None:
        match step:
            case Ask(name, _, 0, _):
                if name in self.world.server.objects[KIND]:
                    self.world.delete(name)
            case Ask(name, replicas, weight, length):
                placement = {"pool": "shared", "weight": weight}
                self.world.ask_for(name, replicas, placement=placement, runtime={"maxModelLen": length})
            case Sleep(number, awake):
                for host in sorted(self.world.hosts.items())[number : number + 1]:
                    for model, found in sorted(host[1].models.items())[:1]:
                        if found.wish:
                            continue
                        if awake:
                            host[1].use(model)
                        elif found.state == "Resident":
                            found.state = "InHost"
                            host[1].decide(model, "Asleep", "idle")

    def check(self) -> None:
        """Assert that no model has more copies than wanted: the number of hosts is constant here, so nothing moves."""
        wanted = {name: item["spec"]["replicas"] for name, item in self.world.server.objects[KIND].items()}
        for name, count in self.copies(going=False).items():
            assert count <= max(wanted.get(name, HOSTS), HOSTS)
        for host in self.world.hosts.values():
            host.check_integrity()

    def copies(self, *, going: bool = True) -> Counter[str]:
        return Counter(
            model.name
            for host in self.world.hosts.values()
            for model, found in host.models.items()
            if going or found.wish != "gone"
        )

    def end(self) -> dict[str, Any]:
        """Return the final state without pod names and times."""
        objects = self.world.server.objects
        assert set(objects[HOST_KIND]) == set(self.world.hosts) == set(objects["Pod"]), "no orphan"
        models = {}
        for name, item in objects[KIND].items():
            status = item["status"]
            states = sorted(placement["state"] != "Placing" for placement in status["placements"])
            conditions = {c["type"]: c["status"] for c in status["conditions"] if c["type"] in ("Ready", "Placed")}
            models[name] = (states, conditions)
        return {"models": models, "copies": dict(self.copies()), "hosts": len(self.world.hosts)}


@pytest.mark.long
@given(STEPS, GAPS)
@settings(max_examples=50, deadline=None)
def test_killed_anywhere_it_ends_where_an_undisturbed_run_does(steps: list[Ask | Sleep], gaps: list[int]) -> None:
    whole, killed = Story(()), Story(gaps)
    expected = run(whole.tell(steps))
    assert run(killed.tell(steps)) == expected
    wanted = {name: item["spec"]["replicas"] for name, item in killed.world.server.objects[KIND].items()}
    assert {name: count for name, count in wanted.items() if count} == killed.copies()


@given(GAPS.filter(bool))
@settings(max_examples=25, deadline=None)
def test_killed_while_models_are_placed_none_is_loaded_twice(gaps: list[int]) -> None:
    steps = [Ask(name, 1, 1, 512) for name in "abc"]
    killed = Story(gaps)
    run(killed.tell(steps))
    loads = Counter(model.name for host in killed.world.hosts.values() for model in host.loads)
    assert loads == {"a": 1, "b": 1, "c": 1}
