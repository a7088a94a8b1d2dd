"""The extremes of a time window, compared with a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_operator.scaling.stabilization import Extremes

SAID = st.lists(st.tuples(st.floats(0, 30), st.integers(0, 9)), min_size=1, max_size=40)


@given(SAID, st.floats(0, 100))
def test_they_are_those_of_what_was_said(said: list[tuple[float, int]], window: float) -> None:
    found, known, now = Extremes(), list[tuple[float, int]](), 0.0
    for seconds, value in said:
        now += seconds
        found.say(now, value)
        found.forget(now - window)
        found.check_integrity()
        known.append((now, value))
        within = [value for at, value in known if at >= now - window]
        assert found.most(now - window) == max(within)
        assert found.least(now - window) == min(within)


def test_of_nothing_said_there_are_none() -> None:
    assert (Extremes().most(0.0), Extremes().least(0.0)) == (0, 0)
