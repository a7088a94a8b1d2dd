"""The wait before a rejected pod or Service is tried again."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_support.objects import EPOCH, stamp

from plimsoll_operator.kube.result import FIRST_WAIT, LONGEST_WAIT, retry_in
from plimsoll_operator.status.status import Rejections

QUOTA, ADDRESSES = Rejections(pod="exceeded quota"), Rejections(service="no more addresses")
SECOND = timedelta(seconds=1)


def conditions(placed: str = "False", routable: str = "False") -> list[dict[str, str]]:
    """Return conditions with transitions at the epoch."""
    return [
        {"type": kind, "status": status, "lastTransitionTime": stamp(EPOCH)}
        for kind, status in (("Placed", placed), ("Routable", routable))
    ]


@pytest.mark.parametrize(
    ("rejections", "age", "wait"),
    [
        (Rejections(), 60, None),
        (QUOTA, 0, FIRST_WAIT),
        (QUOTA, 60, 60 * SECOND),
        (QUOTA, 4000, LONGEST_WAIT),
        (ADDRESSES, 60, 60 * SECOND),
        (Rejections("exceeded quota", "no more addresses"), 60, 60 * SECOND),
    ],
)
def test_a_refusal_is_tried_again_after_as_long_as_it_has_lasted(
    rejections: Rejections, age: int, wait: timedelta | None
) -> None:
    assert retry_in(rejections, conditions(), EPOCH + age * SECOND) == wait


def test_what_was_well_before_has_been_refused_for_no_time() -> None:
    later = EPOCH + timedelta(days=1)
    assert retry_in(QUOTA, conditions(placed="True"), later) == FIRST_WAIT
    assert retry_in(QUOTA, [], later) == FIRST_WAIT
    assert retry_in(ADDRESSES, conditions(routable="True"), later) == FIRST_WAIT


@given(st.floats(0, 1e6))
def test_the_number_of_tries_is_bounded(seconds: float) -> None:
    """Many models may be rejected for a long time, so each must cost about one request in five minutes."""
    now, tries = EPOCH, 0
    while now < EPOCH + timedelta(seconds=min(seconds, 50_000)):
        wait = retry_in(QUOTA, conditions(), now)
        assert wait is not None
        assert FIRST_WAIT <= wait <= LONGEST_WAIT
        now, tries = now + wait, tries + 1
    assert tries <= 10 + seconds / LONGEST_WAIT.total_seconds()
