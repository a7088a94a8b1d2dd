"""Phases follow each other without gaps."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_telemetry.phases import Phases


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10**9)), max_size=30))
def test_they_add_up(marks: list[tuple[str, int]]) -> None:
    now = 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic_ns", lambda: now)
        phases = Phases()
        for name, ns in marks:
            now += ns
            assert phases.end(name) == phases.last_ns == now
    found = phases.all()
    assert sum(phase.end_ns - phase.start_ns for phase in found) == now - 1000
    assert [phase.start_ns for phase in found] == [1000, *(phase.end_ns for phase in found)][:-1]
    assert all(one.name != other.name for one, other in pairwise(found)), "neighbours are merged"
    for name in "abc":
        seconds = phases.seconds().get(name, 0.0)
        assert seconds == pytest.approx(sum(ns for each, ns in marks if each == name) / 1e9)


def test_none_yet() -> None:
    phases = Phases(5)
    assert (phases.all(), phases.last_ns, phases.seconds()) == ([], 5, {})
