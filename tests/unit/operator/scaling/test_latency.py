"""Percentiles of the counts between two reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_operator.scaling.demand import Latency
from plimsoll_operator.scaling.latency import Spread

BOUNDS = (0.1, 0.5, 1.0, 5.0)


def counted(seconds: list[float]) -> Latency:
    buckets = tuple((bound, sum(value <= bound for value in seconds)) for bound in BOUNDS)
    return Latency(len(seconds), sum(seconds), buckets)


def spread(seconds: list[float], before: list[float] | None = None) -> Spread:
    found = Spread()
    found.add(counted(before or []), counted([*(before or []), *seconds]))
    return found


def test_nothing_has_no_percentile() -> None:
    assert Spread().percentile() is None
    assert spread([]).percentile() is None
    first = Spread()
    first.add(None, counted([0.2] * 9))
    assert first.count == 0, "their times are unknown"


def test_within_a_bucket_it_is_shared_out_evenly() -> None:
    assert spread([0.2] * 100).percentile(0.95) == pytest.approx(0.1 + 0.4 * 0.95)
    assert spread([0.05] * 90 + [0.7] * 10).percentile(0.95) == pytest.approx(0.75)
    assert spread([0.05] * 95 + [3.0] * 5).percentile(0.95) == pytest.approx(0.1)
    assert spread([60.0] * 9).percentile() == 5.0, "beyond every bound"


def test_what_was_before_counts_for_nothing() -> None:
    assert spread([0.05] * 20, before=[4.0] * 1000).percentile() == pytest.approx(0.095)


def test_without_bounds_nothing_is_known() -> None:
    """A gateway may report the number of requests of a revision without their latencies."""
    found = spread([0.05] * 10)
    before = found.counts.copy()
    found.add(Latency(), Latency(count=5))
    assert found.counts == before
    alone = Spread()
    alone.add(Latency(), Latency(count=5))
    assert (alone.count, alone.percentile()) == (0, None)


def test_other_bounds_begin_anew() -> None:
    found = spread([0.05] * 20)
    found.add(Latency(0, 0.0, ((2.0, 0),)), Latency(3, 3.0, ((2.0, 3),)))
    assert (found.bounds, found.count) == ((2.0,), 3)
    found.add(Latency(0, 0.0, ((2.0, 0),)), Latency(3, 3.0, ((4.0, 3),)))
    assert found.count == 3, "two answers with other bounds are not compared"


@given(st.lists(st.floats(0.001, 4.9), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_it_is_in_the_bucket_of_the_true_one(seconds: list[float], share: float) -> None:
    true = sorted(seconds)[max(0, -int(-len(seconds) * share // 1) - 1)]
    bounds = (0.0, *BOUNDS)
    low, high = next((a, b) for a, b in zip(bounds, BOUNDS, strict=False) if true <= b)
    found = spread(seconds).percentile(share)
    assert found is not None
    assert low - 1e-9 <= found <= high + 1e-9
