"""The scaling rule with numbers, and its properties for any input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_operator.scaling.facts import Facts
from plimsoll_operator.scaling.load_line import LoadLine
from plimsoll_operator.scaling.rule import FACTOR, STEP, DesiredReplicas, Why, decide, needed
from plimsoll_operator.scaling.stabilization import Extremes
from plimsoll_operator.spec.scaling import Scaling, Target
from plimsoll_operator.status.load_progress import Loading

NOW = 10_000.0
CALM = Facts(now=NOW, ready=1, slots=8.0, asked=NOW, carried=0.0)
"""All gateways have reported for hours."""
EIGHT = Scaling(least=0, most=10, idle=300, target=Target())
"""A replica serves 12 requests: eight slots, and four may wait."""


def desired_replicas(
    desired: int | None,
    facts: Facts,
    scaling: Scaling = EIGHT,
    load_line: LoadLine = LoadLine(),  # noqa: B008
    **said: Any,
) -> DesiredReplicas:
    """Return the decision if the need was the same for hours, unless `said` has earlier needs."""
    found = Extremes()
    for ago, number in sorted(said.get("before", {}).items(), reverse=True):
        found.say(facts.now - ago, number)
    if desired:
        found.say(facts.now, needed(scaling, desired, facts, load_line).replicas)
    return decide(scaling, desired, facts, load_line, found, said.get("began", 0.0))


@pytest.mark.parametrize(
    ("desired", "facts", "replicas", "why"),
    [
        (None, CALM, 1, Why.FIRST),
        (11, CALM, 10, Why.BOUNDS),
        (0, CALM, 0, Why.SAME),
        (0, replace(CALM, held=1), 1, Why.HELD),
        (0, replace(CALM, held=13), 2, Why.HELD),
        (0, replace(CALM, held=1000), STEP, Why.HELD),
        (1, CALM, 1, Why.SAME),
        (1, replace(CALM, in_flight=11.0), 1, Why.SAME),
        (1, replace(CALM, in_flight=20.0), 2, Why.LOAD),
        (1, replace(CALM, in_flight=30.0, backlog=20.0), 3, Why.LOAD),
        (1, replace(CALM, in_flight=2.0, expected=4.0, seconds=5.0), 2, Why.LOAD),
        (1, replace(CALM, in_flight=200.0), STEP + 1, Why.LOAD),
        (6, replace(CALM, in_flight=500.0), 10, Why.LOAD),
        (6, replace(CALM, in_flight=2.0), 1, Why.LOAD),
        (6, replace(CALM, asked=NOW - 300), 0, Why.IDLE),
        (6, replace(CALM, asked=NOW - 299), 1, Why.LOAD),
        (1, replace(CALM, asked=0.0, loading=Loading(served=NOW - 299)), 1, Why.SAME),
        (1, replace(CALM, asked=0.0, loading=Loading(served=NOW - 300)), 0, Why.IDLE),
        (1, replace(CALM, asked=0.0, loading=Loading(until=NOW + 1)), 1, Why.SAME),
        (2, replace(CALM, asked=0.0, loading=Loading(until=NOW + 1)), 1, Why.LOAD),
        (1, replace(CALM, asked=0.0, loading=Loading(loaded=False, until=NOW)), 0, Why.IDLE),
        (0, replace(CALM, loading=Loading(loaded=False)), 1, Why.FIRST),
        (0, replace(CALM, loading=Loading(loaded=False), held=13), 2, Why.HELD),
        (0, replace(CALM, loading=Loading(loaded=False, failed=True)), 0, Why.SAME),
        (0, replace(CALM, loading=Loading(loaded=False, failed=True), held=1), 1, Why.HELD),
        (1, replace(CALM, asked=NOW - 300, in_flight=0.1), 1, Why.SAME),
        (1, replace(CALM, asked=NOW - 300, held=1), 1, Why.SAME),
    ],
)
def test_what_is_wanted(desired: int | None, facts: Facts, replicas: int, why: Why) -> None:
    found = desired_replicas(desired, facts)
    assert (found.replicas, found.why) == (replicas, why), found.words


def test_the_reason_has_the_numbers() -> None:
    busy = desired_replicas(1, replace(CALM, in_flight=20.0))
    assert busy.words == "20.0 requests at a time are expected, and a replica serves 12.0"
    assert desired_replicas(0, replace(CALM, held=2)).words == "2 requests wait for a replica"
    assert desired_replicas(1, replace(CALM, asked=NOW - 600)).words == "no requests for 600 s"
    slow = replace(CALM, in_flight=10.0, carried=10.0, ttft=1.2)
    target = replace(EIGHT, target=Target(None, ttft=0.8))
    assert desired_replicas(1, slow, target).words.startswith(
        "time to first token is 1.2 s, and the target is 800 ms; "
    )


def test_fewer_must_have_been_enough_for_long() -> None:
    facts = replace(CALM, in_flight=2.0)
    assert desired_replicas(6, facts, before={299.0: 3}).replicas == 3
    assert desired_replicas(6, facts, before={301.0: 3}).replicas == 1
    assert desired_replicas(6, facts, began=NOW - 299).replicas == 6
    assert desired_replicas(6, replace(facts, since=NOW - 299)).replicas == 6
    assert desired_replicas(6, replace(facts, since=NOW - 300)).replicas == 1


@pytest.mark.parametrize("facts", [replace(CALM, in_flight=2.0), replace(CALM, asked=0.0)])
def test_nothing_goes_while_a_gateway_is_unheard(facts: Facts) -> None:
    assert desired_replicas(6, facts).replicas < 6
    assert desired_replicas(6, replace(facts, unheard="gateway a: it is not reachable")).replicas == 6
    assert desired_replicas(6, replace(facts, held=1)).replicas == 6, "a request waits for one of them"


def test_more_may_have_to_be_needed_for_a_while() -> None:
    slow, facts = replace(EIGHT, up=60), replace(CALM, in_flight=20.0)
    assert desired_replicas(1, facts, slow, before={59.0: 1}).replicas == 1
    assert desired_replicas(1, facts, slow, before={61.0: 1}).replicas == 2
    assert desired_replicas(1, facts, slow, began=NOW - 59).replicas == 1
    assert desired_replicas(0, replace(facts, held=1), slow, began=NOW).replicas == 1, "a request never waits for that"


def test_a_need_that_hardly_differs_changes_nothing() -> None:
    just = replace(CALM, in_flight=12.5, slots=8.0)
    assert needed(EIGHT, 1, replace(just, in_flight=11.7), LoadLine()).replicas == 2
    assert needed(EIGHT, 1, replace(just, in_flight=11.3), LoadLine()).replicas == 1
    assert needed(EIGHT, 2, replace(just, in_flight=9.6), LoadLine()).replicas == 2
    assert needed(EIGHT, 2, replace(just, in_flight=9.0), LoadLine()).replicas == 1


def test_people_hear_what_keeps_it_from_scaling() -> None:
    assert "maxReplicas is 10" in desired_replicas(10, replace(CALM, in_flight=500.0)).trouble
    deaf = replace(CALM, unheard="gateway a: it is not reachable", since=NOW)
    assert desired_replicas(2, deaf).trouble == desired_replicas(0, deaf).trouble == "gateway a: it is not reachable"
    assert desired_replicas(2, replace(deaf, since=NOW - 1)).trouble == "", "its last report still counts"
    target = replace(EIGHT, target=Target(None, ttft=0.8))
    alone = desired_replicas(1, replace(CALM, carried=0.3, ttft=3.0), target)
    assert "more replicas do not help" in alone.trouble
    assert alone.replicas == 1


scalings = st.builds(
    lambda least, more, **rest: Scaling(least=least, most=max(1, least + more), **rest),
    least=st.integers(0, 4),
    more=st.integers(0, 20),
    idle=st.integers(10, 900),
    up=st.sampled_from([0, 30]),
    down=st.sampled_from([0, 60, 300]),
    target=st.builds(
        Target, st.sampled_from([None, 1, 4]), st.sampled_from([None, 0.8]), st.sampled_from([None, 0.05]),
        st.sampled_from([None, 0.8]),
    ),
)  # fmt: skip
counts = st.floats(0, 1000)
facts_of = st.builds(
    Facts,
    now=st.just(NOW),
    ready=st.integers(0, 20),
    held=st.sampled_from([0, 0, 1, 50]),
    in_flight=counts,
    backlog=st.just(0.0),
    rate=counts,
    expected=counts,
    seconds=st.none() | st.floats(0.01, 100),
    carried=st.none() | counts,
    waiting=counts,
    slots=st.none() | st.floats(1, 256),
    kv=st.none() | st.floats(0, 1),
    ttft=st.none() | st.floats(0, 60),
    itl=st.none() | st.floats(0, 10),
    asked=st.floats(0, NOW),
    since=st.floats(0, NOW),
    unheard=st.sampled_from(["", "", "gateway a"]),
    loading=st.builds(
        Loading,
        st.booleans(),
        st.booleans(),
        until=st.sampled_from([0.0, NOW - 1, NOW, NOW + 1]),
        served=st.floats(0, NOW),
    ),
)
lines = st.builds(LoadLine, st.none() | st.floats(1, 100), st.floats(0, NOW), st.just(0.0))
pasts = st.lists(st.tuples(st.floats(0, NOW), st.integers(0, 24)), max_size=8)


def told(past: list[tuple[float, int]], scaling: Scaling, desired: int, facts: Facts, load_line: LoadLine) -> Extremes:
    found = Extremes()
    for at, number in sorted(past):
        found.say(at, number)
    if desired:
        found.say(NOW, needed(scaling, desired, facts, load_line).replicas)
    found.check_integrity()
    return found


@given(scalings, st.integers(0, 30), facts_of, lines, pasts, st.floats(0, NOW))
def test_whatever_it_is_told(
    scaling: Scaling, desired: int, facts: Facts, load_line: LoadLine, past: list[tuple[float, int]], began: float
) -> None:
    found = decide(scaling, desired, facts, load_line, told(past, scaling, desired, facts, load_line), began)
    assert scaling.least <= found.replicas <= scaling.most
    within = scaling.clamped(desired)
    if found.replicas < within:
        assert not facts.unheard, "a gateway that is not heard may have requests for them"
        assert not facts.held
        watched = NOW - max(facts.since, began)
        assert watched >= (scaling.down if found.replicas else scaling.idle)
    if within and not found.replicas:
        assert scaling.least == 0
        assert not facts.in_flight
        assert NOW - max(facts.asked, facts.loading.served) >= scaling.idle
        assert facts.loading.until <= NOW, "a replica still loads"
    if desired == within == 0:
        untried = not facts.loading.loaded and not facts.loading.failed
        assert (found.replicas > 0) is (facts.held > 0 or untried)
    if found.replicas > within:
        assert found.replicas <= max(FACTOR * within, within + STEP)
    assert (found.replicas == desired) or found.words


@given(scalings, st.integers(1, 20), facts_of, lines, st.floats(0, 500), st.floats(0, 500))
def test_more_load_never_needs_fewer(
    scaling: Scaling, desired: int, facts: Facts, load_line: LoadLine, flying: float, expected: float
) -> None:
    more = replace(facts, in_flight=facts.in_flight + flying, expected=facts.expected + expected)
    assert needed(scaling, desired, more, load_line).replicas >= needed(scaling, desired, facts, load_line).replicas


@given(scalings, facts_of, lines, st.integers(1, 20))
def test_a_need_is_at_rest_once_it_is_met(scaling: Scaling, facts: Facts, load_line: LoadLine, desired: int) -> None:
    """The need does not depend on the present number of replicas, so it does not oscillate."""
    first = needed(scaling, desired, facts, load_line).replicas
    again = needed(scaling, first, facts, load_line).replicas
    assert needed(scaling, again, facts, load_line).replicas == again
