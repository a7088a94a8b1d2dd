"""The placement benchmark: its bound against the best schedules, the other rules, and the document."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement import run as command
from placement.bound import lower_bound
from placement.goals import judge
from placement.ideal import popularity_known
from placement.informed import Informed, Rates
from placement.picture import draw
from placement.policies import Lru, ModelMesh, Static
from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.model import Model, Need
from plimsoll_operator.simulation.placement_policy import PlannerPolicy
from plimsoll_operator.simulation.pool import Host, Policy, Pool
from plimsoll_operator.simulation.trace import Request, Trace

RESULTS = Path(__file__).parents[3] / "benchmarks/results/placement.json"
KEYS = [ObjectKey("t", name) for name in "abcd"]


def trace(order: str, gap: float = 1000.0, size: int = 10) -> Trace:
    models = tuple(Model(key, "1", (Need(size, host=size),), load_seconds=10.0, wake_seconds=1.0) for key in KEYS)
    requests = tuple(Request(gap * at, KEYS["abcd".index(name)], 1.0) for at, name in enumerate(order))
    return Trace("test", models, requests)


def belady(order: str, slots: int) -> float:
    """Return the minimum cost of a cache of this many models, which need not keep the model it serves, by trying all
    choices.
    """
    best = {frozenset[str](): 0.0}
    for name in order:
        after: dict[frozenset[str], float] = {}
        for kept, paid in best.items():
            now = paid + (0.0 if name in kept else 10.0)
            for count in range(slots + 1):
                for keep in itertools.combinations(sorted(kept | {name}), count):
                    after[frozenset(keep)] = min(now, after.get(frozenset(keep), float("inf")))
        best = after
    return min(best.values())


@settings(max_examples=15, deadline=None)
@given(st.text("abcd", min_size=1, max_size=9), st.integers(1, 3))
def test_the_bound_is_never_above_the_best_schedule_and_is_close_to_it(order: str, slots: int) -> None:
    """For models of one size without images the relaxation is exact, so the dual is close."""
    best = belady(order, slots)
    found = lower_bound(trace(order), [Host("h", 10 * slots, 0)], 0.0, steps=2000)
    assert found <= best + 1e-6
    assert found >= 0.93 * best


def test_memory_for_images_and_patience_lower_the_bound() -> None:
    order = "abcabcabc"
    without = lower_bound(trace(order), [Host("h", 10, 0)], 0.0)
    images = lower_bound(trace(order), [Host("h", 10, 20)], 0.0)
    patient = lower_bound(trace(order), [Host("h", 10, 0)], 2500.0)
    # Of six repeated models, two may stay on the device and four wake. With long waits, a model serves all its requests
    # at once.
    assert images == pytest.approx(30 + 4, rel=0.05)
    assert images < without
    assert patient < without


@pytest.mark.parametrize("policy", [PlannerPolicy(), Lru(), ModelMesh()])
def test_no_policy_pays_less_than_the_bound(policy: Policy) -> None:
    made = trace("abcdabdcadbcabcd" * 3, gap=40.0)
    outcome = Pool(made, [Host("h1", 20, 5), Host("h2", 10, 10)], policy).run()
    assert outcome.served == len(made.requests)
    bound = lower_bound(made, [Host("h1", 20, 5), Host("h2", 10, 10)], max(outcome.waits))
    assert bound <= outcome.seconds


def test_lru_sends_away_what_was_used_the_longest_ago() -> None:
    outcome = Pool(trace("abcab"), [Host("h", 20, 0)], Lru()).run()
    assert outcome.loads == 5
    assert Pool(trace("abacab"), [Host("h", 20, 0)], Lru()).run().loads == 4


def test_static_serves_the_most_popular_only() -> None:
    made = trace("aaabbc")
    outcome = Pool(made, [Host("h", 20, 0)], Static(made)).run()
    assert (outcome.served, outcome.loads) == (5, 2)


def test_modelmesh_goes_to_the_instance_with_fewest_models_then_to_the_oldest() -> None:
    made = trace("abcd")
    pool = Pool(made, [Host("h1", 20, 0), Host("h2", 20, 0)], ModelMesh())
    assert pool.run().loads == 4
    assert [len(host.copies) for host in pool.hosts.values()] == [2, 2]


def test_knowing_popularity_keeps_what_saves_most_a_byte() -> None:
    assert popularity_known(trace("aaabbc"), [Host("h", 10, 0)]) == 10 + 20 + 10


def test_rates_are_those_of_the_window_and_of_the_whole_trace_where_windows_are_short() -> None:
    made = trace("aaab", gap=100.0)  # at 0, 100, 200 and 300 seconds
    a, b = KEYS[:2]
    assert Rates(made, None).at(250.0) == {a: 3 / 300, b: 1 / 300}
    long = Rates(made, 700.0)
    assert long.at(0.0) == {a: 3 / 700, b: 1 / 700}
    assert long.at(700.0) == {a: 0.0, b: 0.0}
    short = Rates(made, 150.0)
    assert short.at(149.0) == {a: 2 / 150, b: 1 / 300}
    assert short.at(150.0) == {a: 3 / 300, b: 1 / 300}
    assert short.at(300.0) == {a: 3 / 300, b: 1 / 150}


def test_whoever_is_told_the_rates_keeps_the_popular_model_and_pays_no_less_than_the_bound() -> None:
    made = trace("ab" + "acad" * 6, gap=40.0)
    outcome = Pool(made, [Host("h", 20, 0)], Informed(made)).run()
    assert outcome.served == len(made.requests)
    # The popular model is loaded once, the others for each request.
    assert outcome.loads == 1 + 1 + 12
    assert outcome.seconds >= lower_bound(made, [Host("h", 20, 0)], max(outcome.waits))


def test_goals_are_judged_by_their_figures() -> None:
    policies = {
        name: {"seconds": seconds}
        for name, seconds in (("plimsoll", 80.0), ("informed", 64.0), ("lru", 100.0), ("modelmesh", 90.0))
    }
    rows = judge([{"name": "x", "policies": policies, "bound": 70.0}], {"steady": 0.2})
    assert [(row["figure"], row["met"]) for row in rows] == [
        ("1.14", True),
        ("1.25", False),
        ("20%", True),
        ("11%", False),
        ("200 ms", False),
    ]


def test_the_document_and_the_picture_show_what_was_recorded() -> None:
    traces = json.loads(RESULTS.read_text())["traces"]
    document = command.DOCUMENT.read_text()
    assert command.with_figures(document, "\n\n".join(command.sheet(one).markdown() for one in traces)) == document
    assert command.PICTURE.read_text() == draw(traces)
    ElementTree.fromstring(draw(traces))
