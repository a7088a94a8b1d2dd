from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.local.processes.supervisor import FIRST_SECONDS, LONGEST_SECONDS, STABLE_SECONDS, Backoff


def test_it_doubles_up_to_a_limit() -> None:
    backoff = Backoff(jitter=lambda: 1.0)
    assert [backoff.after(0.1) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_long_life_begins_anew() -> None:
    backoff = Backoff(jitter=lambda: 1.0)
    for _ in range(5):
        backoff.after(0.1)
    assert backoff.after(STABLE_SECONDS) == FIRST_SECONDS
    assert backoff.after(0.1) == 2 * FIRST_SECONDS


@given(st.lists(st.floats(0, 100), max_size=30), st.floats(0, 1))
def test_it_never_leaves_its_bounds(lives: list[float], jitter: float) -> None:
    backoff = Backoff(jitter=lambda: jitter)
    for lived in lives:
        assert FIRST_SECONDS / 2 <= backoff.after(lived) <= LONGEST_SECONDS
