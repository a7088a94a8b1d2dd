"""The bound for pools of few models, compared with every schedule of a model, and with the cost of pools."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement import replay as command
from placement.bound import lower_bound as pairs_bound
from placement.replay import PACES, replay, trace
from placement.run import with_figures
from placement.schedules import Asked, Prices, Run, cheapest, fullest, lower_bound, use
from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.model import Model, Need
from plimsoll_operator.simulation.placement_policy import PlannerPolicy
from plimsoll_operator.simulation.pool import Host, Pool
from plimsoll_operator.simulation.trace import Request, Trace
from plimsoll_runtime.residency.settings import Settings

ROOT = Path(__file__).parents[3]
KEYS = [ObjectKey("t", name) for name in "abcd"]
CELLS = 6
GIVEN = st.lists(st.sampled_from([0.0, 0.1, 0.7, 3.0]), min_size=CELLS, max_size=CELLS)


def made(order: str, gap: float, size: int = 10, load: float = 10.0, wake: float = 1.0) -> Trace:
    models = tuple(Model(key, "1", (Need(size, host=size),), load_seconds=load, wake_seconds=wake) for key in KEYS)
    requests = tuple(Request(gap * at, KEYS["abcd".index(name)], 1.0) for at, name in enumerate(order))
    return Trace("test", models, requests)


def rows_of_runs(after: int = -1) -> Iterator[list[Run]]:
    """Yield all sequences of runs that fit into the cells, each at least a cell of loading and a cell awake after the
    previous one.
    """
    yield []
    for first in range(after + 1, CELLS):
        for last in range(first, CELLS):
            for image in (False, True):
                yield from ([Run(first, last, image), *rest] for rest in rows_of_runs(last))


def cost(model: Model, runs: list[Run], prices: Prices) -> float:
    """Return the cost by the module's definition, cell by cell; infinite if a run begins before its load could have."""
    paid, before, need, least = 0.0, -1, model.need.device, min(model.need.device, model.need.host)
    for run in runs:
        seconds = model.wake_seconds if run.image else model.load_seconds
        loading = range(max(0, run.first - max(0, int(seconds) - 1)), run.first)
        if (run.image and before < 0) or (before >= 0 and run.first - before <= max(0, int(seconds) - 1)):
            return math.inf
        paid += seconds
        for cell in range(CELLS):
            awake, kept = run.first < cell < run.last, run.image and before < cell < run.first
            paid += need * prices.device[cell] * (awake or cell in loading)
            paid += least * prices.memory[cell] * (awake or kept or cell in loading)
        before = run.last
    return paid


@settings(max_examples=60, deadline=None)
@given(st.data(), GIVEN, GIVEN, st.integers(1, 3), st.sampled_from([(3.0, 1.0), (2.0, 2.0), (1.0, 1.0)]))
def test_the_cheapest_schedule_of_a_model_is_that_of_all(
    data: st.DataObject, device: list[float], memory: list[float], wait: int, seconds: tuple[float, float]
) -> None:
    model = Model(KEYS[0], "1", (Need(2, host=1),), load_seconds=seconds[0], wake_seconds=seconds[1])
    times = sorted(data.draw(st.lists(st.integers(0, CELLS - 1 - wait), min_size=1, max_size=4, unique=True)))
    after = [max([time for time in times if time + wait < cell], default=-1) for cell in range(CELLS + 1)]
    asked, prices = Asked(model, after, times[0] + wait, times[-1]), Prices(device, memory)

    def serves(runs: list[Run]) -> bool:
        return all(any(run.first <= time + wait and run.last >= time for run in runs) for time in times)

    best = min(cost(model, runs, prices) for runs in rows_of_runs() if serves(runs))
    found, runs = cheapest(asked, prices)
    assert found == pytest.approx(best)
    assert serves(runs)
    assert cost(model, runs, prices) == pytest.approx(found)
    # A schedule is charged for the bytes it uses, which is the direction in which prices should move.
    bytes_on, bytes_in = [0.0] * CELLS, [0.0] * CELLS
    use(asked, runs, 1.0, bytes_on, bytes_in)
    charged = sum(a * on for a, on in zip(device, bytes_on, strict=True))
    charged += sum(b * held for b, held in zip(memory, bytes_in, strict=True))
    assert found == pytest.approx(charged + sum(seconds[1] if run.image else seconds[0] for run in runs))


def test_two_that_are_asked_for_more_often_than_they_may_wait_do_not_cost_nothing() -> None:
    """Considering pairs of requests, nothing need be paid after the first loads: the second request comes while the
    first may wait.
    """
    asked, hosts = made("ab" * 12, 10.0), [Host("h", 10, 0)]
    assert pairs_bound(asked, hosts, 25.0) == 20.0
    # Requests arrive every 20 s and wait at most 25 s, so an awake model can be away for at most 45 s.
    found = lower_bound(asked, hosts, 25.0)
    assert 60.0 < found <= Pool(asked, hosts, PlannerPolicy()).run().seconds


@settings(max_examples=25, deadline=None)
@given(st.text("abcd", min_size=1, max_size=14), st.sampled_from([3.0, 12.0, 40.0]), st.integers(1, 2))
def test_no_pool_pays_less_than_the_bound(order: str, gap: float, slots: int) -> None:
    asked, hosts = made(order, gap), [Host("h1", 10 * slots + 5, 5), Host("h2", 10, 10)]
    outcome = Pool(asked, hosts, PlannerPolicy()).run()
    assert lower_bound(asked, hosts, max(outcome.waits), steps=40) <= outcome.seconds + 1e-6


@pytest.mark.long
def test_a_bound_for_who_waits_no_longer_than_he_did_is_higher() -> None:
    asked, hosts = made("ab" * 12, 10.0), [Host("h", 10, 0)]
    waits = [25.0 if at == 0 else 10.0 for at in range(24)]
    assert lower_bound(asked, hosts, waits) > 1.4 * lower_bound(asked, hosts, max(waits))
    assert lower_bound(asked, hosts, [25.0] * 24) == lower_bound(asked, hosts, 25.0)


@pytest.mark.long
def test_what_a_line_cannot_hold_whole_is_no_room() -> None:
    assert fullest([4, 4, 4], 10) == 8
    assert fullest([4, 6, 3], 10) == 10
    assert fullest([7], 5) == 0
    assert fullest([4] * 20, 10) == 10
    asked = made("abab" * 4, 30.0)
    assert lower_bound(asked, [Host("h", 19, 0)], 0.0) == lower_bound(asked, [Host("h", 10, 0)], 0.0)
    assert lower_bound(asked, [Host("h", 20, 0)], 0.0) == 20.0


@pytest.mark.parametrize("room", [2, 3])
def test_hosts_serve_who_waits_and_no_model_is_loaded_by_two_of_them(room: int) -> None:
    """Both planners over the pool of the end-to-end tests: all requests are answered, each model is loaded from its
    files once.
    """
    pool = replay("slow", room, 1, 30.0, Settings(minimum_residency=2.0))
    assert len(pool.asked) >= 100
    assert (pool.loads, pool.moves) == (8, 0)
    for host in pool.worlds.values():
        host.memory.check_integrity()
    load, wake = PACES["slow"]
    counted = pool.loads * load + pool.wakes * wake
    assert pool.seconds == pytest.approx(counted)
    hosts = [Host(name, host.memory.device.line, 2**28) for name, host in pool.worlds.items()]
    waits = [one.waited for one in sorted(pool.asked, key=lambda one: one.at)]
    patient = lower_bound(trace(pool), hosts, max(waits), steps=40)
    assert 8 * load < patient < lower_bound(trace(pool), hosts, waits, steps=40) <= pool.seconds


def test_the_document_shows_what_was_recorded() -> None:
    rows = json.loads((ROOT / "benchmarks/results/pool-replay.json").read_text())["rows"]
    document = command.DOCUMENT.read_text()
    assert with_figures(document, command.sheet(rows).markdown(), command.BEGIN, command.END) == document
