"""No minute exceeds the limit, wherever it starts; and a window agrees with a plain list."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plimsoll_gateway.admission.quota.sliding_window import SECONDS, Window

MOST = 100


class WindowMachine(RuleBasedStateMachine):
    """Models the window as a list of (second, amount), of which the last minute counts."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.25
        self.window = Window()
        self.taken: list[list[int]] = []

    def used(self, now: float) -> int:
        return sum(amount for second, amount in self.taken if second >= int(now) - SECONDS)

    @rule(amount=st.integers(0, 60))
    def take(self, amount: int) -> None:
        second = self.window.take(amount, self.now)
        assert second == int(self.now)
        self.taken.append([second, amount])

    @rule(data=st.data(), actual=st.integers(0, 90))
    def correct(self, data: st.DataObject, actual: int) -> None:
        if self.taken:
            entry = data.draw(st.sampled_from(self.taken))
            more = actual - entry[1]
            self.window.correct(entry[0], more, self.now)
            if entry[0] >= int(self.now) - SECONDS:
                entry[1] = actual
            elif more > 0:
                self.taken.append([int(self.now), more])

    @rule(seconds=st.sampled_from([0.5, 1.0, 7.25, 59.0, 61.0, 500.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(amount=st.integers(1, 120))
    def ask(self, amount: int) -> None:
        wait = self.window.seconds_until(amount, MOST, self.now)
        if amount > MOST:
            assert wait == math.inf
            return
        assert self.used(self.now + wait) + amount <= MOST
        assert wait == 0 or self.used(self.now + wait - 0.01) + amount > MOST

    @rule()
    def ask_for_the_end(self) -> None:
        wait = self.window.seconds_until_empty(self.now)
        assert self.used(self.now + wait) == 0
        assert wait == 0 or self.used(self.now + wait - 0.01) > 0

    @invariant()
    def agrees(self) -> None:
        self.window.forget(self.now)
        self.window.check_integrity()
        assert self.window.total == self.used(self.now)


TestWindow = WindowMachine.TestCase


@given(pauses=st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.7, 20.0]), min_size=100, max_size=300))
def test_no_minute_has_more_than_the_limit(pauses: list[float]) -> None:
    window, now, times = Window(), 12345.6, []
    for pause in pauses:
        now += pause
        if window.seconds_until(1, 10, now) == 0:
            window.take(1, now)
            times.append(now)
    assert all(sum(begin <= t < begin + SECONDS for t in times) <= 10 for begin in times)


def test_a_steady_client_gets_its_limit_within_two_percent() -> None:
    window, taken, minutes = Window(), 0, 30
    for tick in range(minutes * 60 * 20):
        now = 5000 + tick / 20
        if window.seconds_until(1, 120, now) == 0:
            window.take(1, now)
            taken += 1
    assert 0.98 * 120 * minutes <= taken <= 120 * (minutes + 1)


def test_what_an_answer_of_minutes_took_beyond_its_estimate_counts_when_it_is_known() -> None:
    window = Window()
    second = window.take(100, 1000.0)
    window.correct(second, 900, 1000.0 + 2 * SECONDS)
    assert window.total == 900
    window.correct(second, -50, 1000.0 + 2 * SECONDS)
    assert window.total == 900
    window.check_integrity()
