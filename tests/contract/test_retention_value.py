"""Operator and runtime compute the same retention value: both are checked against one table of vectors.

docs/concepts/residency.md explains the formula. The runtime's value counts uses and adds the clock of its host; the
operator's counts requests a second, has no clock, and is scaled to seconds of loading saved an hour for each GiB.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest

from plimsoll_operator.placement.retention_value import HALF_LIFE, chance, decayed, retention
from plimsoll_runtime.residency import model
from plimsoll_runtime.residency.model import Demand
from plimsoll_runtime.residency.planner.view import retention_value, retention_worth

GIB = 2**30


class Vector(NamedTuple):
    """`uses` that lie `age` seconds back, `seconds` to wake the model again, bytes that it holds, and a host's clock.

    Expected: `worth` in seconds of loading, `value` for each GiB, and `hourly`, the operator's value for each GiB.
    """

    uses: float
    age: float
    seconds: float
    weight: float
    size: int
    clock: float
    worth: float
    value: float
    hourly: float


LN2 = 0.6931471805599453
VECTORS = [
    Vector(1, 0, 1.0, 1.0, GIB, 0.0, worth=1.0, value=1.0, hourly=12 * LN2),
    Vector(4, 0, 10.0, 1.0, 8 * GIB, 0.0, worth=40.0, value=5.0, hourly=60 * LN2),
    Vector(4, 300, 10.0, 1.0, 8 * GIB, 0.0, worth=20.0, value=2.5, hourly=30 * LN2),
    Vector(4, 900, 10.0, 2.0, 8 * GIB, 3.0, worth=10.0, value=4.25, hourly=15 * LN2),
    Vector(16, 600, 0.5, 4.0, GIB // 2, 1.5, worth=8.0, value=17.5, hourly=192 * LN2),
    Vector(0, 0, 10.0, 1.0, 8 * GIB, 7.0, worth=0.0, value=7.0, hourly=0.0),
    Vector(3, 3000, 25.0, 0.5, 40 * GIB, 0.0, worth=0.03662109375, value=0.00091552734375, hourly=0.010986328125 * LN2),
]
"""Half-life 300 s: a use a half-life ago counts half. One use is a rate of ln 2 / 300 a second, so 12 ln 2 an hour."""


@pytest.mark.parametrize("vector", VECTORS)
def test_the_table_is_the_formula(vector: Vector) -> None:
    uses = vector.uses * np.exp2(-np.float64(vector.age) / 300)
    worth = uses * vector.seconds * vector.weight
    assert vector.worth == pytest.approx(worth, rel=1e-12)
    assert vector.value == pytest.approx(vector.clock + worth * GIB / vector.size, rel=1e-12)
    assert vector.hourly == pytest.approx(worth * np.log(2) / 300 * 3600 * GIB / vector.size, rel=1e-12)


@pytest.mark.parametrize("vector", VECTORS)
def test_the_runtime_computes_it(vector: Vector) -> None:
    uses = Demand(vector.uses, last_used=-vector.age).frequency(0.0)
    assert retention_worth(uses, vector.seconds, vector.weight) == pytest.approx(vector.worth, rel=1e-12)
    value = retention_value(vector.clock, uses, vector.seconds, vector.weight, vector.size)
    assert value == pytest.approx(vector.value, rel=1e-12)


@pytest.mark.parametrize("vector", VECTORS)
def test_the_operator_computes_it_from_the_reported_rate(vector: Vector) -> None:
    reported = Demand(vector.uses, last_used=0.0).rate(0.0)
    rate = decayed(reported, vector.age)
    assert rate == pytest.approx(Demand(vector.uses, last_used=-vector.age).rate(0.0), rel=1e-12)
    assert retention(rate, vector.seconds, vector.weight, vector.size) == pytest.approx(vector.hourly, rel=1e-12)


def test_without_clocks_both_rank_models_alike() -> None:
    by_operator = sorted(VECTORS, key=lambda v: retention(decayed(v.uses, v.age), v.seconds, v.weight, v.size))
    by_runtime = sorted(
        VECTORS,
        key=lambda v: retention_value(0.0, Demand(v.uses, -v.age).frequency(0.0), v.seconds, v.weight, v.size),
    )
    assert by_operator == by_runtime


def test_both_have_one_half_life() -> None:
    assert model.HALF_LIFE == HALF_LIFE == 300.0


def test_a_model_without_bytes_is_never_the_first_victim() -> None:
    assert retention(0.1, 1.0, 1.0, 0) == math.inf
    assert retention_value(0.0, 1.0, 1.0, 1.0, 0) == GIB


@pytest.mark.parametrize(("rate", "seconds", "expected"), [(0.0, 10.0, 0.0), (LN2, 1.0, 0.5), (LN2, 3.0, 0.875)])
def test_the_chance_of_a_request_is_that_of_poisson_arrivals(rate: float, seconds: float, expected: float) -> None:
    assert chance(rate, seconds) == pytest.approx(expected, rel=1e-12)
