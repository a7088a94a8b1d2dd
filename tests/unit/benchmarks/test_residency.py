"""The simulated host of residency: its arithmetic, plain LRU, and reproducible days."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from plimsoll_runtime.residency.planner.plan import plan
from plimsoll_runtime.residency.planner.view import Pressure
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.sizes import Seconds, Sizes
from plimsoll_runtime.residency.spec import ModelName
from residency.density import fit
from residency.lru import plan_lru
from residency.run import markdown
from residency.traces import BILLIONS, DAY, GIB, TRACES, models, zipf
from residency.world import STOP_SECONDS, Model, Planner, World, memory_of

ROOT = Path(__file__).parents[3]
A, B, C = (ModelName("team", letter) for letter in "abc")
SETTINGS = Settings(minimum_residency=0.0, service_slice=0.0, patience=0.0)


def world_of(decide: Planner, *, line: int, sleepers: int = 10, settings: Settings = SETTINGS) -> World:
    """Return three models of two bytes each, 10 s from disk and 2 s from an image."""
    sizes = Sizes(1, 1, 0, 1, 1)
    models = [Model(name, sizes, Seconds(load=8.0, wake=2.0)) for name in (A, B, C)]
    return World(models, memory_of(line, sleepers), settings, decide)


def ask(world: World, name: ModelName, at: float, seconds: float = 1.0) -> None:
    def arrive() -> None:
        world.arrive(name, seconds)

    world.at(at, arrive)


@pytest.mark.parametrize("decide", [plan, plan_lru])
def test_one_that_fits_pays_once_and_two_that_do_not_pay_in_turns(decide: Planner) -> None:
    world = world_of(decide, line=2)
    ask(world, A, 0.0)
    ask(world, A, 20.0)
    ask(world, B, 30.0)
    ask(world, A, 60.0)
    world.run()
    assert world.waits == [10.0, 0.0, 10.0 + STOP_SECONDS, 2.0 + STOP_SECONDS]
    assert (world.loads, world.wakes, world.loading_seconds) == (2, 3, 22.0)


def test_lru_takes_the_one_that_was_used_longest_ago() -> None:
    world = world_of(plan_lru, line=4)
    for name, at in ((A, 0.0), (B, 1.0), (A, 30.0), (C, 40.0)):
        ask(world, name, at)
    world.run()
    assert [world.models[name].grant is not None for name in (A, B, C)] == [True, False, True]


def test_sleepers_without_room_go_to_disk() -> None:
    world = world_of(plan, line=2, sleepers=0)
    for name, at in ((A, 0.0), (B, 30.0), (A, 60.0)):
        ask(world, name, at)
    world.run()
    assert (world.loads, world.loading_seconds) == (3, 30.0)


def test_what_comes_at_regular_times_is_awake_before_it_comes() -> None:
    world = world_of(plan, line=2, settings=Settings())

    def press(level: Pressure) -> None:
        world.pressure = level
        world.replan(relieve=True)

    for burst in range(6):
        ask(world, A, 600.0 * burst)
        world.at(600.0 * burst + 100, lambda: press(Pressure.SOME))
        world.at(600.0 * burst + 110, lambda: press(Pressure.NONE))
    world.run()
    # Four bursts are a rhythm: the fifth is foretold.
    assert world.waits == [10.0, 2.0, 2.0, 2.0, 0.0, 0.0]


def test_a_seed_is_a_day() -> None:
    for make in TRACES.values():
        first = list(make(random.Random(3)))
        assert first == list(make(random.Random(3)))
        assert first != list(make(random.Random(4)))
        times = [arrival.at for arrival in first]
        assert times == sorted(times)
        assert times[0] >= 0
        assert times[-1] < DAY + 3600


def test_the_document_shows_what_was_recorded() -> None:
    recorded = json.loads((ROOT / "benchmarks/results/residency.json").read_text())["results"]
    assert recorded.keys() == TRACES.keys()
    assert markdown(recorded) in (ROOT / "docs/concepts/residency.md").read_text()


def test_static_loading_serves_as_many_as_fit_the_smallest_first() -> None:
    least = sorted(model.sizes.least for model in models())
    assert fit(models(), sum(least[:5])) == 5
    assert fit(models(), sum(least[:5]) - 1) == 4
    assert fit(models(), least[0] - 1) == 0
    assert fit(models(3 * len(BILLIONS)), 40 * GIB) == fit(models(), 40 * GIB), "sizes that recur make it no easier"


def test_more_models_share_the_same_requests() -> None:
    few, many = (list(zipf(random.Random(0), count)) for count in (4, 40))
    assert {arrival.model for arrival in few} == set(range(4))
    assert {arrival.model for arrival in many} == set(range(40))
    assert abs(len(few) - len(many)) < 0.05 * len(few)
    assert len({model.name for model in models(40)}) == 40
