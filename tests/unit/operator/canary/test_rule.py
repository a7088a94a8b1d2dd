"""The next state of a canary, with its reason: wait, next step, promote or roll back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_support.objects import EPOCH

from plimsoll_operator.canary.counts import RequestCounts
from plimsoll_operator.canary.rule import LOOK_AGAIN, Facts, begin, counted, judge, taken_back, under
from plimsoll_operator.canary.state import Canary, State, canary_fields, mark_of, read_canary, read_mark
from plimsoll_operator.spec.canary import CanarySpec, read_canary_spec

GOOD, ENOUGH = RequestCounts(450, 0), RequestCounts(50, 0)


def terms(*steps: dict[str, Any], **more: Any) -> CanarySpec:
    found = read_canary_spec({"steps": list(steps) or [{"weight": 10, "pauseSeconds": 60}, {"weight": 50}], **more})
    assert found is not None
    return found


def facts(wanted: int = 1, ready: int = 1, seconds: float = 0, late: float = 600, **more: Any) -> Facts:
    return Facts(wanted, ready, EPOCH + timedelta(seconds=late), EPOCH + timedelta(seconds=seconds), **more)


def canary(state: State = State.OBSERVING, weight: int = 10, step: int = 1, by: CanarySpec | None = None) -> Canary:
    by = by or terms()
    return replace(begin("b", "a", by, EPOCH), state=state, weight=weight, step=step)


def test_it_gets_requests_once_all_its_pods_are_ready() -> None:
    first = begin("b", "a", terms(), EPOCH)
    assert (first.weight, first.state, first.step, first.steps) == (0, State.STARTING, 1, 2)
    assert judge(first, terms(), facts(2, 1)).canary == first
    moved = judge(first, terms(), facts(2, 2, seconds=5)).canary
    assert moved is not None
    assert (moved.weight, moved.state, moved.since) == (10, State.OBSERVING, EPOCH + timedelta(seconds=5))
    assert moved.message == "step 1 of 2, 10% of requests: for at least 60 s"


def test_a_step_lasts_as_long_as_it_says_and_until_enough_are_answered() -> None:
    at = canary()
    early = judge(at, terms(), facts(seconds=59, canary=ENOUGH, stable=GOOD))
    assert (early.canary, early.wait) == (judge(at, terms(), facts()).canary, timedelta(seconds=1))
    few = judge(at, terms(), facts(seconds=60, canary=RequestCounts(49, 0), stable=GOOD))
    assert few.canary is not None
    assert few.canary.message.endswith("waiting for 50 requests in this step; it has fewer so far")
    assert few.wait == LOOK_AGAIN
    untold = judge(at, terms(), facts(seconds=60)).canary
    assert untold is not None
    assert untold.message.endswith("no gateway reports counts")
    over = judge(at, terms(), facts(seconds=60, canary=ENOUGH, stable=GOOD)).canary
    assert over is not None
    assert (over.step, over.state, over.weight) == (2, State.STARTING, 10), "its share rises once its pods are there"


def test_after_the_last_step_it_gets_all() -> None:
    at = canary(step=2, weight=50)
    assert judge(at, terms(), facts(seconds=300, canary=ENOUGH, stable=GOOD)).canary is None


def test_without_a_least_number_of_requests_time_alone_counts() -> None:
    by = terms({"weight": 10, "pauseSeconds": 60}, minRequests=0)
    assert judge(canary(by=by), by, facts(seconds=60)).canary is None


def test_a_pause_lasts_until_it_is_taken_away() -> None:
    by = terms({"weight": 10, "paused": True}, {"weight": 50})
    held = judge(canary(by=by), by, facts(seconds=10**6, late=10**7, canary=ENOUGH, stable=GOOD)).canary
    assert held is not None
    assert held.message == "step 1 of 2, 10% of requests: paused until spec.rollout.canary changes"
    again = terms({"weight": 10, "pauseSeconds": 0}, {"weight": 50})
    moved = judge(under(again, held, EPOCH), again, facts(canary=ENOUGH, stable=GOOD)).canary
    assert moved is not None
    assert moved.step == 2


@pytest.mark.parametrize("state", [State.OBSERVING, State.STARTING])
def test_it_is_taken_back_for_what_fails_even_while_pods_are_made(state: State) -> None:
    found = judge(
        canary(state), terms(), facts(2, 1, canary=RequestCounts(40, 12), stable=RequestCounts(360, 0))
    ).canary
    assert found is not None
    assert (found.state, found.weight) == (State.TAKEN_BACK, 0)
    assert found.message == "taken back: 12 of 40 requests failed; on stable pods, 0 of 360 (allowed: 1%)"
    assert found.progress == "taken back"
    assert judge(found, terms(), facts(seconds=10**6, canary=ENOUGH)).canary == found, "for good"


def test_pods_that_never_become_ready_are_taken_back_with_their_own_words() -> None:
    first = begin("b", "a", terms(), EPOCH)
    assert judge(first, terms(), facts(2, 1, seconds=599)) == judge(first, terms(), facts(2, 1, seconds=599))
    assert judge(first, terms(), facts(2, 1, seconds=590)).wait == timedelta(seconds=10)
    found = judge(first, terms(), facts(2, 1, seconds=600, hindrance="no such tensor")).canary
    assert found is not None
    assert found.message == (
        "taken back: 1 of 2 of its pods are ready, and none has made progress before the deadline: no such tensor"
    )


def test_where_no_pod_can_be_it_waits_and_says_why() -> None:
    found = judge(begin("b", "a", terms(), EPOCH), terms(), facts(0, 0, seconds=10**6, hindrance="why")).canary
    assert found is not None
    assert (found.state, found.weight) == (State.STARTING, 0)
    assert found.message.endswith("waiting: why")


def test_other_terms_keep_it_where_it_is() -> None:
    by = terms({"weight": 10}, {"weight": 50}, {"weight": 80})
    at = canary(step=3, weight=80, by=by)
    shorter = terms({"weight": 20})
    moved = under(shorter, at, EPOCH)
    assert (moved.step, moved.steps, moved.weight, moved.state) == (1, 1, 80, State.STARTING)
    heavier = terms({"weight": 10}, {"weight": 50}, {"weight": 90})
    same = under(heavier, at, EPOCH)
    assert (same.step, same.state, same.terms) == (3, State.OBSERVING, heavier.fingerprint)
    following = judge(same, heavier, facts()).canary
    assert following is not None
    assert (following.state, following.weight) == (State.STARTING, 80)


def test_since_when_pods_lack_is_when_they_were_wanted_last() -> None:
    later = EPOCH + timedelta(hours=1)
    at = counted(canary(), 1, 1, EPOCH)
    assert at.lacking is None
    lacks = counted(at, 2, 1, later)
    assert lacks.lacking == later
    assert counted(lacks, 2, 1, later + timedelta(hours=1)) == lacks
    assert counted(lacks, 2, 2, later).lacking is None
    assert counted(lacks, 0, 0, later).lacking is None
    assert counted(taken_back(lacks, "it fails", later), 1, 0, later).lacking is None


def test_it_is_read_as_it_is_written() -> None:
    at = canary()
    assert read_canary({"canary": canary_fields(at)}) == at
    lacks = replace(at, lacking=EPOCH)
    assert read_canary({"canary": canary_fields(lacks)}) == lacks
    assert read_canary({}) is None
    assert read_mark(mark_of(at).text()) == mark_of(at)
    for text in ("", "{}", "[]", "3", "nothing", "[" * 100_000 + "]" * 100_000):
        assert read_mark(text) is None
