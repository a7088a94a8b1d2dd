"""Allowed step durations: at least the minimum, well above measured ones, and outliers fade."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.step_timing import FIRST_SECONDS, StepDurations


def test_before_the_first_step_the_slowest_machine_has_time() -> None:
    assert StepDurations(60).allow(2048) == FIRST_SECONDS
    assert StepDurations(900).allow(1) == 900


def test_short_steps_have_the_least_and_long_ones_ten_times_their_mean() -> None:
    durations = StepDurations(60)
    for _ in range(100):
        durations.learn(1, 0.01)
        durations.learn(2048, 200.0)
    assert durations.allow(1) == 60
    assert durations.allow(2048) == durations.allow(4095) == pytest.approx(2000)


def test_a_size_that_is_new_is_judged_by_the_next_smaller_one() -> None:
    durations = StepDurations(60)
    durations.learn(64, 45.0)
    durations.learn(1, 20.0)
    assert durations.allow(2048) == pytest.approx(2 * 32 * 45)
    assert durations.allow(63) == pytest.approx(2 * 63 * 20)


def test_a_size_below_all_that_are_known_takes_no_longer_than_they_do() -> None:
    durations = StepDurations(60)
    durations.learn(64, 45.0)
    durations.learn(2048, 900.0)
    assert durations.allow(1) == 450


def test_a_step_that_compiled_is_forgotten() -> None:
    durations = StepDurations(60)
    durations.learn(1, 100.0)
    assert durations.allow(1) == 1000
    for _ in range(200):
        durations.learn(1, 0.01)
    assert durations.allow(1) == 60


@given(st.integers(1, 10**4), st.integers(1, 10**4), st.floats(0.001, 10), st.floats(0.0001, 0.1))
def test_no_step_of_a_machine_with_a_steady_speed_is_ever_too_long(
    known: int, tokens: int, fixed: float, per_token: float
) -> None:
    durations = StepDurations(1)
    durations.learn(known, fixed + known * per_token)
    assert durations.allow(tokens) >= fixed + tokens * per_token
