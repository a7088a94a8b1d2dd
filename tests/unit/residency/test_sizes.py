"""Measured loading times keep their total, however they are divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.residency.sizes import GUESSED_WAKE_SECONDS, Seconds

taken = st.floats(0.01, 1000)


@given(taken, taken, taken)
def test_a_load_takes_what_it_took_and_no_less_than_the_wake_that_is_part_of_it(
    load: float, wake: float, again: float
) -> None:
    loaded = Seconds.guessed(10**9).loaded(load)
    assert loaded.from_disk == pytest.approx(load)
    assert 0 <= loaded.wake <= load
    woken = loaded.woken(wake, loaded=True)
    assert woken.wake == wake
    assert woken.from_disk == pytest.approx(max(load, wake))
    assert woken.loaded(again).from_disk == pytest.approx(again)


def test_a_wake_before_any_load_says_nothing_of_the_files() -> None:
    """The image was filled by an earlier process's engine, so the guess stays for the load time."""
    guessed = Seconds.guessed(10**9)
    assert guessed.wake == GUESSED_WAKE_SECONDS
    assert guessed.woken(5.0, loaded=False) == Seconds(guessed.load, 5.0)
