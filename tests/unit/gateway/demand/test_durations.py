"""Histograms of durations equal a manual count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.demand.revision_totals import Durations

BOUNDS = (0.1, 0.5, 1.0)
SECONDS = st.one_of(st.sampled_from([0.0, *BOUNDS, 2.0]), st.floats(0, 10))


@given(st.lists(st.tuples(SECONDS, st.integers(1, 5)), max_size=30))
def test_each_is_counted_below_all_bounds_that_it_does_not_exceed(added: list[tuple[float, int]]) -> None:
    durations = Durations(BOUNDS)
    for seconds, times in added:
        durations.add(seconds, times)
    each = [seconds for seconds, times in added for _ in range(times)]
    spread = durations.spread()
    assert spread.count == len(each)
    assert spread.seconds == pytest.approx(sum(each))
    assert spread.buckets == tuple((bound, sum(one <= bound for one in each)) for bound in BOUNDS)
