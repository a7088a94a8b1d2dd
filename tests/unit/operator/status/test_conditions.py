"""Transition times of conditions, and the changes that become events."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_support.objects import EPOCH, stamp

from plimsoll_operator.status.conditions import (
    LOADED,
    MESSAGE_LIMIT,
    PLACED,
    PROGRESSING,
    READY,
    RECONCILING,
    ROUTABLE,
    STALLED,
    Condition,
    news,
    with_times,
)
from plimsoll_operator.status.reasons import CALM, Reason

TYPES = (READY, PROGRESSING, PLACED, LOADED, ROUTABLE)
STATES = st.tuples(*(st.tuples(st.sampled_from([True, False, None]), st.sampled_from(Reason)) for _ in TYPES))
STEPS = st.lists(st.tuples(st.integers(0, 90), STATES), min_size=1, max_size=8)


@given(STEPS)
def test_the_time_of_a_condition_is_that_of_its_last_change_of_status(steps: list[tuple[int, Any]]) -> None:
    now, written, since = EPOCH, list[dict[str, Any]](), dict[str, tuple[bool | None, datetime]]()
    for generation, (seconds, states) in enumerate(steps):
        now += timedelta(seconds=seconds)
        conditions = [
            Condition(kind, status, reason, "why") for kind, (status, reason) in zip(TYPES, states, strict=True)
        ]
        written = with_times(conditions, written, generation, now)
        for condition, entry in zip(conditions, written, strict=True):
            if condition.type not in since or since[condition.type][0] != condition.status:
                since[condition.type] = (condition.status, now)
            assert entry == {
                "type": condition.type,
                "status": {True: "True", False: "False", None: "Unknown"}[condition.status],
                "observedGeneration": generation,
                "lastTransitionTime": stamp(since[condition.type][1]),
                "reason": condition.reason,
                "message": "why",
            }


def test_the_same_conditions_say_the_same_later() -> None:
    conditions = [Condition(READY, True, Reason.READY, "1 ready")]
    written = with_times(conditions, [], 3, EPOCH)
    assert with_times(conditions, written, 3, EPOCH + timedelta(hours=1)) == written


def test_a_message_of_any_length_can_be_written() -> None:
    (written,) = with_times([Condition(LOADED, False, Reason.CRASHED, "x" * 99999)], [], 1, EPOCH)
    assert len(written["message"]) == MESSAGE_LIMIT


def test_reasons_are_words_that_kubernetes_takes() -> None:
    assert all(re.fullmatch(r"[A-Z][A-Za-z]{1,127}", reason) for reason in Reason)


@pytest.mark.parametrize("reason", sorted(CALM))
def test_what_has_merely_not_happened_yet_is_no_news(reason: Reason) -> None:
    assert news([Condition(kind, False, reason, "") for kind in TYPES], []) == []


@pytest.mark.parametrize("reason", sorted(set(Reason) - CALM))
@pytest.mark.parametrize("kind", [PLACED, LOADED, ROUTABLE])
def test_a_failure_is_told_once_and_again_when_it_is_another(kind: str, reason: Reason) -> None:
    failure = Condition(kind, False, reason, "why")
    assert failure.is_warning
    assert news([failure], []) == [failure]
    assert news([failure], with_times([failure], [], 1, EPOCH)) == []
    other = Reason.CRASHED if reason is not Reason.CRASHED else Reason.EVICTED
    assert news([failure], with_times([Condition(kind, False, other, "why")], [], 1, EPOCH)) == [failure]


def test_ready_and_progressing_do_not_repeat_what_the_others_say() -> None:
    told = [
        Condition(READY, True, Reason.READY, ""),
        Condition(STALLED, True, Reason.INVALID_SPEC, ""),
        Condition(STALLED, True, Reason.PROGRESS_DEADLINE_EXCEEDED, ""),
        Condition(PROGRESSING, False, Reason.SETTLED, ""),
    ]
    silent = [
        Condition(READY, False, Reason.CRASHED, ""),
        Condition(READY, False, Reason.INVALID_SPEC, ""),
        Condition(READY, True, Reason.STOPPED, ""),
        Condition(PROGRESSING, True, Reason.FAILING, ""),
        Condition(PROGRESSING, False, Reason.PROGRESS_DEADLINE_EXCEEDED, ""),
        Condition(RECONCILING, True, Reason.FAILING, ""),
        Condition(PROGRESSING, False, Reason.INVALID_SPEC, ""),
        Condition(LOADED, None, Reason.INVALID_SPEC, ""),
    ]
    assert [c for c in told + silent if news([c], [])] == told


def test_good_ends_are_no_warnings() -> None:
    ends = [
        Condition(READY, True, Reason.READY, ""),
        Condition(LOADED, True, Reason.LOADED, ""),
        Condition(PROGRESSING, False, Reason.SETTLED, ""),
    ]
    assert not any(c.is_warning for c in ends)
    assert Condition(STALLED, True, Reason.PROGRESS_DEADLINE_EXCEEDED, "").is_warning
    assert not Condition(LOADED, None, Reason.INVALID_SPEC, "").is_warning
