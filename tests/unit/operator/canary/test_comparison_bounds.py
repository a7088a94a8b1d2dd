"""The bounds match their definition, and their error rate holds for any number of looks."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_operator.canary.comparison import highest, log_evidence, lowest

ERROR = 0.05
COUNTS = st.integers(1, 400).flatmap(lambda tries: st.tuples(st.integers(0, tries), st.just(tries)))


def mixture(hits: int, tries: int) -> float:
    """Return the integral of q^x (1 - q)^(n - x) under Beta(1/2, 1/2), by the substitution q = sin(t)^2 and Simpson's
    rule.
    """
    steps = 4000
    width = math.pi / 2 / steps

    def at(t: float) -> float:
        q = math.sin(t) ** 2
        return (2 / math.pi) * q**hits * (1 - q) ** (tries - hits)

    inner = sum((4 if n % 2 else 2) * at(n * width) for n in range(1, steps))
    return (at(0.0) + inner + at(math.pi / 2)) * width / 3


@pytest.mark.parametrize(("hits", "tries"), [(0, 1), (1, 1), (3, 10), (0, 30), (12, 40), (39, 40)])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_evidence_is_the_mixtures_likelihood_over_the_shares(hits: int, tries: int, share: float) -> None:
    expected = math.log(mixture(hits, tries)) - hits * math.log(share) - (tries - hits) * math.log(1 - share)
    assert log_evidence(hits, tries, share) == pytest.approx(expected, abs=1e-6)


@given(COUNTS)
def test_bounds_lie_around_what_was_seen_and_where_the_evidence_says(counts: tuple[int, int]) -> None:
    hits, tries = counts
    low, high = lowest(hits, tries, ERROR), highest(hits, tries, ERROR)
    assert 0.0 <= low <= hits / tries <= high <= 1.0
    for bound, end in ((low, 0.0), (high, 1.0)):
        if bound != end:
            assert log_evidence(hits, tries, bound) == pytest.approx(-math.log(ERROR), abs=1e-6)
    assert low == pytest.approx(1 - highest(tries - hits, tries, ERROR), abs=1e-9)


def test_without_a_try_nothing_is_known() -> None:
    assert (lowest(0, 0, ERROR), highest(0, 0, ERROR)) == (0.0, 1.0)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.9])
def test_who_looks_after_each_try_is_wrong_no_more_often_than_stated(share: float) -> None:
    """Runs of 400 looks each. A textbook bound for a single look is wrong far more often."""
    draw, runs, wrong, naive = random.Random(11), 300, 0, 0
    for _ in range(runs):
        hits, left, naively_left = 0, False, False
        for tries in range(1, 401):
            hits += draw.random() < share
            left = left or log_evidence(hits, tries, share) >= -math.log(ERROR)
            spread = 1.96 * math.sqrt(share * (1 - share) / tries)
            naively_left = naively_left or (tries > 30 and abs(hits / tries - share) > spread)
        wrong += left
        naive += naively_left
    assert wrong / runs <= ERROR
    assert naive / runs > 3 * ERROR
