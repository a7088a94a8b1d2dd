"""The load line of a replica, from its slots, its cache and missed targets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_operator.scaling.facts import Facts
from plimsoll_operator.scaling.load_line import DRAW_SECONDS, FORGET_SECONDS, UNKNOWN_SLOTS, LoadLine, alone, miss
from plimsoll_operator.spec.scaling import Target

NOW = 10_000.0
TARGET = Target(None, ttft=1.0)
FACTS = Facts(now=NOW, ready=2, slots=8.0, carried=6.0, ttft=0.5)


@pytest.mark.parametrize(
    ("target", "facts", "height"),
    [
        (Target(4), FACTS, 12.0),
        (Target(None, kv=0.8), FACTS, 8.0),
        (Target(4), replace(FACTS, slots=None), UNKNOWN_SLOTS + 4.0),
        (Target(None, kv=0.8), replace(FACTS, kv=0.6), 8.0),
        (Target(None, kv=0.8), replace(FACTS, kv=0.9), 6.0 * 0.8 / 0.9),
        (Target(None, kv=0.8), replace(FACTS, kv=0.1, carried=0.2), 8.0),
        (Target(None, kv=0.1), replace(FACTS, kv=1.0, carried=2.0), 1.0),
    ],
)
def test_before_anything_went_wrong(target: Target, facts: Facts, height: float) -> None:
    assert LoadLine().height(target, facts) == pytest.approx(height)


@pytest.mark.parametrize(
    ("target", "facts", "load_line"),
    [
        (TARGET, FACTS, None),
        (TARGET, replace(FACTS, ttft=1.44), 5.0),
        (TARGET, replace(FACTS, ttft=30.0), 4.0),
        (TARGET, replace(FACTS, ttft=30.0, waiting=1.0), 6.0),
        (TARGET, replace(FACTS, ttft=30.0, carried=0.9), None),
        (TARGET, replace(FACTS, ttft=30.0, carried=None), None),
        (TARGET, replace(FACTS, ttft=30.0, ready=0), None),
        (Target(None, itl=0.05), replace(FACTS, itl=0.072), 5.0),
        (Target(4), replace(FACTS, waiting=4.1), 10.0),
        (Target(4), replace(FACTS, waiting=4.0), None),
        (Target(None, kv=0.5), replace(FACTS, kv=0.75), 4.0),
        (Target(4, ttft=1.0), replace(FACTS, waiting=5.0, ttft=1.1), 6.0),
    ],
)
def test_a_target_that_is_missed_draws_a_line(target: Target, facts: Facts, load_line: float | None) -> None:
    found = miss(target, facts)
    assert (found.load_line if found is not None else None) == (
        load_line if load_line is None else pytest.approx(load_line)
    )


def test_a_line_is_drawn_once_a_minute_and_only_lower() -> None:
    first = LoadLine().learned(TARGET, replace(FACTS, ttft=1.44))
    assert [first.missed, first.at] == pytest.approx([5.0, NOW])
    worse = replace(FACTS, ttft=9.0)
    assert first.learned(TARGET, replace(worse, now=NOW + DRAW_SECONDS - 1)) == first
    assert first.learned(TARGET, replace(worse, now=NOW + DRAW_SECONDS)).missed == pytest.approx(4.0)
    coming = replace(worse, now=NOW + DRAW_SECONDS, steady=False)
    assert first.learned(TARGET, coming) == first, "the effect of more replicas is not measured yet"
    crowded = replace(FACTS, now=NOW + DRAW_SECONDS, carried=20.0, ttft=1.2)
    assert first.learned(TARGET, crowded) == first, "that more cannot be carried is known"


def test_a_line_is_forgotten_by_and_by_and_raised_by_what_is_carried() -> None:
    load_line = LoadLine().learned(TARGET, replace(FACTS, ttft=3.0))
    assert load_line.height(TARGET, FACTS) == pytest.approx(4.0)
    assert load_line.height(TARGET, replace(FACTS, now=NOW + FORGET_SECONDS / 2)) == pytest.approx(4.0 * 2**0.5)
    assert load_line.height(TARGET, replace(FACTS, now=NOW + 9 * FORGET_SECONDS)) == pytest.approx(8.0), "its places"
    carried = load_line.learned(TARGET, replace(FACTS, now=NOW + 60, carried=5.0))
    assert carried.height(TARGET, FACTS) == pytest.approx(5.0)
    assert carried.learned(TARGET, replace(FACTS, carried=7.0, ttft=None)) == carried, "no news is no good news"


def test_a_line_of_long_ago_is_forgotten_and_breaks_nothing() -> None:
    for days in (1, 170, 171, 20_000):
        late = replace(FACTS, now=NOW + days * 86400.0)
        height = LoadLine(1.0, NOW).height(TARGET, late)
        assert height == (pytest.approx(LoadLine().height(TARGET, late)))


def test_a_latency_without_load_is_told_and_draws_no_line() -> None:
    slow = replace(FACTS, carried=0.4, ttft=3.0)
    assert miss(TARGET, slow) is None
    assert alone(TARGET, slow).startswith("time to first token is 3 s at 0.4 requests a replica")
    assert alone(TARGET, replace(slow, carried=1.0)) == ""
    assert alone(TARGET, replace(slow, ttft=0.9)) == ""


@given(
    st.lists(st.tuples(st.floats(0, 120), st.floats(0, 60), st.floats(0, 40), st.floats(0, 5)), max_size=30),
    st.floats(0, 1),
)
def test_a_replica_always_carries_one_and_never_more_than_its_places(
    seen: list[tuple[float, float, float, float]], kv: float
) -> None:
    target, load_line, now = Target(4, ttft=1.0, kv=0.8), LoadLine(), NOW
    for seconds, carried, waiting, ttft in seen:
        now += seconds
        facts = Facts(now=now, ready=1, slots=16.0, carried=carried, waiting=waiting, ttft=ttft, kv=kv)
        load_line = load_line.learned(target, facts)
        assert 1.0 <= load_line.height(target, facts) <= 20.0
        assert load_line.missed is None or load_line.missed >= 1.0
