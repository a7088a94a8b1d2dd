"""Reports that cannot be true, or come from the past, are told and not used."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.accept import SKEW, accept
from plimsoll_operator.placement.host import Copy, Host, Sleepers
from plimsoll_operator.placement.level import State

NOW = 5000.0
COPY = Copy(ObjectKey("team", "m"), "a", State.RESIDENT, weights=40, kv=5, since=4000.0, last_used=4500.0)
ASLEEP = Copy(ObjectKey("team", "n"), "a", State.IN_HOST, host=20)
HOST = Host(
    ObjectKey("pool", "h"), "n", 100, 90, sleepers=Sleepers(50, 20), instance="i", sequence=7, time=4990.0,
    models=(COPY, ASLEEP),
)  # fmt: skip


def test_a_good_report_is_taken() -> None:
    later = replace(HOST, sequence=8, time=4999.0, models=())
    assert accept(None, HOST, NOW).report is HOST
    assert accept(HOST, later, NOW).report is later
    assert accept(HOST, later, NOW).complaint == ""


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sequence": 6}, "goes back in time, after 7"),
        ({"time": 4980.0}, "its clock went back by 10 s"),
        ({"models": (replace(COPY, state=State.DRAINING), ASLEEP)}, "other states than another report of the same"),
        ({"instance": "before", "time": 4900.0}, "older than the one before it, and of another process"),
        ({"time": NOW + SKEW + 1}, "comes from 61 s ahead"),
        ({"models": (COPY, COPY), "sequence": 8}, "names team/m more than once"),
        ({"reserved": -1}, "sizes below 0"),
        ({"line": 101}, "above its capacity"),
        ({"sleepers": Sleepers(50, 19)}, "its images are 20 B together"),
        ({"reserved": 56}, "hold 101 B of a capacity of 100 B"),
        ({"models": (replace(COPY, active=-1),)}, "team/m has sizes or counts below 0"),
        ({"models": (replace(COPY, rate=math.nan),)}, "team/m has times or rates"),
        ({"models": (replace(COPY, last_used=NOW + 100),)}, "team/m was used or changed 2 min ahead"),
        ({"models": (replace(ASLEEP, active=2),)}, "team/n has 2 requests in flight while it is InHost"),
    ],
)
def test_a_bad_one_is_told_and_the_one_before_stays(changes: dict[str, Any], told: str) -> None:
    accepted = accept(HOST, replace(HOST, **changes), NOW)
    assert accepted.report is HOST
    assert told in accepted.complaint
    assert "pool/h" in accepted.complaint


def test_without_one_before_it_a_bad_report_leaves_nothing() -> None:
    assert accept(None, replace(HOST, line=101), NOW).report is None


def test_a_new_process_begins_to_count_anew() -> None:
    fresh = replace(HOST, instance="next", sequence=0, time=4995.0, models=())
    assert accept(HOST, fresh, NOW).report is fresh


def test_numbers_alone_do_not_raise_the_sequence() -> None:
    busier = replace(HOST, models=(replace(COPY, rate=2.0, active=3), ASLEEP))
    assert accept(HOST, busier, NOW).report is busier


def test_reports_of_two_hosts_are_never_compared() -> None:
    with pytest.raises(ValueError, match="cannot follow one of pool/h"):
        accept(HOST, replace(HOST, key=ObjectKey("pool", "other")), NOW)
