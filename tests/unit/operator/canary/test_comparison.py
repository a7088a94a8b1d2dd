"""A worse canary is detected, and one that is no worse is rolled back no more often than stated."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from plimsoll_operator.canary.comparison import ERROR, why_worse
from plimsoll_operator.canary.counts import RequestCounts
from plimsoll_operator.spec.canary import CanarySpec, read_canary_spec

FOUND = read_canary_spec({"steps": [{"weight": 10}], "maxErrorRate": "1%", "maxLatencyIncrease": "50%"})
assert FOUND is not None
TERMS: CanarySpec = FOUND
BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


def timed(*counts: int) -> RequestCounts:
    """Return counts by bucket; the last count is beyond all bounds."""
    below = list(accumulate(counts))
    return RequestCounts(below[-1], 0, below[-1], tuple(zip(BOUNDS, below, strict=False)))


def test_failures_against_stable_pods_without_any() -> None:
    assert why_worse(TERMS, RequestCounts(40, 12), RequestCounts(360, 0)) == (
        "12 of 40 requests failed; on stable pods, 0 of 360 (allowed: 1%)"
    )


@pytest.mark.parametrize(
    ("canary", "stable"),
    [
        (RequestCounts(), RequestCounts()),
        (RequestCounts(0, 0), RequestCounts(1000, 0)),
        (RequestCounts(1, 1), RequestCounts(10, 0)),
        (RequestCounts(40, 0), RequestCounts(360, 0)),
        (RequestCounts(1000, 12), RequestCounts(9000, 0)),
        (RequestCounts(40, 12), RequestCounts(360, 110)),
        (RequestCounts(40, 12), RequestCounts(4, 1)),
    ],
    ids=str,
)
def test_what_chance_or_everybody_does_is_nobodys_fault(canary: RequestCounts, stable: RequestCounts) -> None:
    assert why_worse(TERMS, canary, stable) is None


def test_without_stable_pods_what_is_allowed_counts() -> None:
    assert why_worse(TERMS, RequestCounts(40, 12), RequestCounts()) is not None
    assert why_worse(TERMS, RequestCounts(200, 3), RequestCounts()) is None


@pytest.mark.parametrize(("share", "requests"), [(1.0, 4), (0.5, 11), (0.2, 33), (0.1, 66), (0.05, 190)])
def test_a_bad_canary_is_found_within_as_many_requests_as_the_docs_say(share: float, requests: int) -> None:
    def seen(count: int) -> bool:
        return why_worse(TERMS, RequestCounts(count, round(count * share)), RequestCounts(9 * count, 0)) is not None

    assert next(count for count in range(1, 1000) if seen(count)) == requests


def test_later_first_bytes_are_found_and_said_in_words() -> None:
    fast, slow = timed(900, 95, 5), timed(2, 3, 20, 40, 50, 5)
    assert why_worse(TERMS, slow, fast) == (
        "the 90% quantile of the time to first byte is at most 0.25 s for the stable pods and above 1 s for the canary "
        "(allowed: 50% more)"
    )
    assert why_worse(TERMS, fast, slow) is None
    assert why_worse(TERMS, fast, fast) is None
    assert why_worse(TERMS, slow, slow) is None
    assert why_worse(TERMS, slow, RequestCounts()) is None
    assert why_worse(TERMS, timed(1, 1, 1, 1, 1), fast) is None, "five prove nothing"


def test_as_much_later_as_is_allowed_is_no_fault() -> None:
    lenient = read_canary_spec({"steps": [{"weight": 10}], "maxLatencyIncrease": "400%"})
    assert lenient is not None
    assert why_worse(lenient, timed(2, 3, 20, 40, 50, 5), timed(900, 95, 5)) is None


def test_an_equal_canary_is_taken_back_no_more_often_than_stated() -> None:
    """Simulates runs in which both fail at the allowed rate, with a look after every tenth request."""
    draw, runs, taken = random.Random(3), 200, 0
    for _ in range(runs):
        failed = [0, 0]
        for count in range(1, 301):
            for side, tries in ((0, 1), (1, 3)):
                failed[side] += sum(draw.random() < TERMS.max_error_rate for _ in range(tries))
            if count % 10 == 0 and why_worse(
                TERMS, RequestCounts(count, failed[0]), RequestCounts(3 * count, failed[1])
            ):
                taken += 1
                break
    assert taken / runs <= ERROR
