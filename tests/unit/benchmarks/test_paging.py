"""The best rule that knows popularities, compared with the best schedule."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.paging import belady, known, ratio

ZIPF = [1 / (rank + 1) for rank in range(8)]
SHARES = [weight / sum(ZIPF) for weight in ZIPF]


def fewest(asked: list[int], room: int) -> int:
    """Return the fewest loads of all schedules that load only requested models."""
    reached = {frozenset[int](): 0}
    for model in asked:
        after: dict[frozenset[int], int] = {}
        for kept, paid in reached.items():
            if model in kept:
                options = [(kept, paid)]
            else:
                options = [
                    (frozenset({*rest, model}), paid + 1) for rest in combinations(kept, min(len(kept), room - 1))
                ]
            for state, cost in options:
                after[state] = min(cost, after.get(state, cost))
        reached = after
    return min(reached.values())


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=10), st.integers(1, 4))
def test_belady_misses_as_seldom_as_any_schedule(asked: list[int], room: int) -> None:
    assert belady(asked, room) == fewest(asked, room)


@pytest.mark.parametrize("room", [2, 4, 6])
def test_what_is_said_of_the_rule_is_what_it_misses(room: int) -> None:
    asked = random.Random(1).choices(range(8), SHARES, k=20_000)
    last, misses = room - 1, 0
    for model in asked:
        if model >= room - 1 and model != last:
            misses, last = misses + 1, model
    assert misses / len(asked) == pytest.approx(known(SHARES, room), rel=0.05)


def test_the_more_fit_the_more_it_is_worth_to_know_the_next_request() -> None:
    found = [ratio(SHARES, room, 20_000) for room in (2, 4, 6)]
    assert found == sorted(found)
    assert found[0] > 1.05
    assert found[-1] > 1.4
