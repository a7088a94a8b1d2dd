"""Counts of a revision's responses, and the timing of a stream's chunks."""

from __future__ import annotations

import pytest

from plimsoll_gateway.demand.revision_totals import Pulse, RevisionTotals


def test_only_what_the_replica_did_wrong_is_an_error() -> None:
    totals = RevisionTotals()
    for status in (200, 404, 429, 500, 503):
        totals.answered(status)
    totals.unanswered()
    totals.broke()
    assert (totals.requests, totals.errors, totals.broken) == (6, 3, 1)


def test_the_first_byte_is_the_answers_and_not_a_comment() -> None:
    totals = RevisionTotals()
    pulse = Pulse(totals, came=100.0)
    pulse.passed(b": the model is being loaded\n\n", 105.0)
    assert totals.first_byte.spread().count == 0
    pulse.passed(b"data: 1\n\n", 107.5)
    assert (totals.first_byte.spread().count, totals.first_byte.spread().seconds) == (1, 7.5)
    assert totals.event_gap.spread().count == 0


def test_events_that_come_together_share_the_time_that_they_took() -> None:
    totals = RevisionTotals()
    pulse = Pulse(totals, came=0.0)
    pulse.passed(b"data: 1\n\n", 1.0)
    pulse.passed(b"data: 2\n\ndata: 3\n\ndata: 4\n\n", 1.75)
    pulse.passed(b"data: the beginning of ", 2.0)
    pulse.passed(b"one\n\n", 2.25)
    spread = totals.event_gap.spread()
    assert spread.count == 4
    assert spread.seconds == pytest.approx(1.25)
    below = dict(spread.buckets)
    assert (below[0.2], below[0.3], below[0.5]) == (0, 3, 4)
    assert pulse.first == 1.0
    assert pulse.mean_gap == pytest.approx(1.25 / 4)


def test_events_that_come_with_the_first_one_come_at_once() -> None:
    totals = RevisionTotals()
    pulse = Pulse(totals, came=0.0)
    assert (pulse.first, pulse.mean_gap) == (None, None)
    pulse.passed(b"data: 1\n\ndata: 2\n\n", 3.0)
    assert (pulse.first, pulse.mean_gap) == (3.0, 0.0)
    assert totals.first_byte.spread().count == 1
    assert (totals.event_gap.spread().count, totals.event_gap.spread().seconds) == (1, 0.0)
