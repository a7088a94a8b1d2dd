"""Repeated lines: the first ones are written, and the counts of the others add up."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_telemetry.repeated_lines import RepeatedLines

SECONDS, MOST = 10.0, 3

steps = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([0.0, 0.5, 4.0, 11.0]), st.integers(1, 3)))


@given(steps)
def test_every_line_is_written_or_counted_once(told: list[tuple[str, float, int]]) -> None:
    lines: RepeatedLines[str] = RepeatedLines(SECONDS, MOST)
    now, sent, written, counted = 0.0, Counter[str](), Counter[str](), Counter[str]()
    last: dict[str, float] = {}
    for kind, later, first in told:
        now += later
        for ended in lines.ended(now, kind):
            counted[ended.kind] += ended.lines
            assert ended.lines > 0
        sent[kind] += 1
        admitted = lines.admit(kind, now, first)
        lines.check_integrity()
        written[kind] += admitted
        assert admitted or now - last[kind] < SECONDS, "the first line of a window is written"
        if admitted:
            last[kind] = now
    for ended in lines.end_all(now):
        counted[ended.kind] += ended.lines
    assert written + counted == sent
    assert lines.end_all(now) == []


def test_a_window_ends_after_its_time() -> None:
    lines: RepeatedLines[str] = RepeatedLines(SECONDS, MOST)
    assert [lines.admit("a", now, 2) for now in (0.0, 1.0, 2.0, 9.0)] == [True, True, False, False]
    assert lines.next_end() == 10.0
    assert lines.ended(9.9, "a") == []
    assert lines.ended(12.0, "a") == [("a", 2, 12.0)]
    assert lines.next_end() is None
    assert lines.admit("a", 12.0, 2)


def test_the_oldest_window_makes_room() -> None:
    lines: RepeatedLines[str] = RepeatedLines(SECONDS, MOST)
    for kind in ("a", "a", "b", "c"):
        assert lines.ended(0.0, kind) == []
        lines.admit(kind, 0.0, 1)
    assert lines.ended(1.0, "d") == [("a", 1, 1.0)]
    assert lines.admit("d", 1.0, 1)
    assert lines.ended(1.0, "d") == []
