"""Reports of replicas count while they are recent and valid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.routing.loads import FRESH_SECONDS, Loads, Report, Standing, read_report


def test_a_report_is_read() -> None:
    assert read_report(b"running=3, waiting=2, slots=128, kv=0.25", own=1) == Report(4, 128, 0.25, 3, 2)
    assert read_report(b"running=3, waiting=2, kv=1.00", own=9) == Report(0, None, 1.0, 3, 2)


@pytest.mark.parametrize(
    "text",
    [b"", b"running=1", b"running=-1, waiting=0, kv=0.00", b"running=1, waiting=0, slots=0, kv=0.00",
     b"running=1, waiting=0, kv=2.00", b"running=1, waiting=0, kv=0.00 ", b"running=9999999, waiting=0, kv=0.00"],
)  # fmt: skip
def test_what_is_no_report_changes_nothing(text: bytes) -> None:
    loads = Loads(lambda: 0.0)
    loads.heard("a", b"running=3, waiting=0, slots=8, kv=0.25", 0)
    loads.heard("a", text, 0)
    assert loads.report("a") == Report(3, 8, 0.25, 3, 0)


@given(text=st.binary(max_size=60))
def test_nothing_that_a_replica_says_is_an_error(text: bytes) -> None:
    report = read_report(text, 0)
    assert report is None or (report.others >= 0 and 0 <= report.kv < 2)


def test_queues_are_forgotten_and_places_are_not() -> None:
    now = 0.0
    loads = Loads(lambda: now)
    loads.heard("a", b"running=3, waiting=0, slots=8, kv=0.25", 0)
    now = FRESH_SECONDS
    assert loads.report("a") is not None
    now += 0.1
    assert loads.report("a") is None
    assert loads.slots("a") == 8
    loads.heard("b", b"running=0, waiting=0, kv=0.00", 0)
    loads.keep({"b"})
    assert (loads.slots("a"), loads.slots("b")) == (None, None)
    assert loads.report("b") is not None


def test_a_replica_stands_as_it_said_of_late_and_else_as_we_know() -> None:
    now = 0.0
    loads = Loads(lambda: now)
    assert loads.standing("a", own=3) == Standing(3, 0, 0, 0.0)
    loads.heard("a", b"running=8, waiting=2, slots=8, kv=0.75", 0)
    assert loads.standing("a", own=0) == Standing(8, 2, 8, 0.75)
    now = FRESH_SECONDS + 0.1
    assert loads.standing("a", own=9) == Standing(8, 1, 8, 0.75)
    assert loads.standing("a", own=0) == Standing(0, 0, 8, 0.0)
