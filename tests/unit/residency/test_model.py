"""A use counts half after five minutes, and periodic bursts predict the next one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.residency.model import Demand
from plimsoll_runtime.residency.planner.view import retention_value, retention_worth


def after(times: list[float]) -> Demand:
    demand = Demand()
    for time in times:
        demand = demand.used(time)
    return demand


@given(st.lists(st.floats(0, 10_000), max_size=30).map(sorted), st.floats(0, 5_000))
def test_each_use_is_halved_every_five_minutes(times: list[float], later: float) -> None:
    now = (times[-1] if times else 0.0) + later
    assert after(times).frequency(now) == pytest.approx(sum(0.5 ** ((now - time) / 300) for time in times))


def test_the_rate_of_a_steady_demand() -> None:
    assert after([0.5 * i for i in range(10_000)]).rate(5_000.0) == pytest.approx(2.0, rel=0.01)


def test_never_used() -> None:
    assert Demand().frequency(1e9) == 0.0
    assert Demand().last_used == -math.inf
    assert Demand().due() is None


def test_bursts_at_regular_times_foretell_the_next() -> None:
    bursts = [start + second for start in (0.0, 600.0, 1190.0, 1800.0) for second in (0.0, 3.0, 50.0)]
    assert after(bursts).due() == pytest.approx(2400.0)


@pytest.mark.parametrize(
    "times",
    [
        [0.0, 600.0, 1200.0],  # too few
        [0.0, 600.0, 900.0, 1800.0, 2400.0],  # not periodic
        [float(second) for second in range(0, 4000, 50)],  # never quiet: one burst
    ],
)
def test_what_foretells_nothing(times: list[float]) -> None:
    assert after(times).due() is None


def test_a_rhythm_that_has_changed_is_forgotten() -> None:
    old = [600.0 * i for i in range(6)]
    new = [3000.0 + 200.0 * i for i in range(1, 8)]
    assert after(old + new[:2]).due() is None
    assert after(old + new).due() == pytest.approx(new[-1] + 200)


def test_value_is_worth_a_gibibyte_above_the_clock() -> None:
    assert retention_worth(3.0, 4.0, 0.5) == 6.0
    assert retention_value(10.0, 3.0, 4.0, 0.5, 2 * 2**30) == 13.0
