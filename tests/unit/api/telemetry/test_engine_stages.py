"""Stages follow each other without gaps, from the marks of any history."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.api.telemetry.engine_stages import Chunk, Stage, StageName, seconds_in, stages_of
from plimsoll_runtime.engine.protocol.messages import Mark, MarkKind, WaitReason

SECOND = 10**9


@st.composite
def histories(draw: st.DrawFn) -> list[Mark]:
    """Return marks as the engine sends them, perhaps not all of them."""
    at, marks, answered = 0, [Mark(MarkKind.QUEUED, 0)], False

    def add(kind: MarkKind, value: int = 0, why: WaitReason = WaitReason.NOTHING) -> None:
        nonlocal at
        at += draw(st.integers(0, SECOND))
        marks.append(Mark(kind, at, value, why))

    reasons = st.sampled_from(WaitReason)
    for _ in range(draw(st.integers(1, 3))):
        add(MarkKind.SCHEDULED, draw(st.integers(0, 9)), draw(reasons))
        for _ in range(draw(st.integers(0, 3))):
            add(MarkKind.CHUNK, draw(st.integers(1, 99)))
        if not answered and draw(st.booleans()):
            answered = True
            add(MarkKind.FIRST_TOKEN)
        add(MarkKind.PREEMPTED, why=draw(reasons))
    add(draw(st.sampled_from([MarkKind.FINISHED, MarkKind.SCHEDULED])))
    return marks[: draw(st.integers(1, len(marks)))]


@given(histories())
def test_they_follow_each_other(marks: list[Mark]) -> None:
    stages = stages_of(marks)
    assert stages[0].name is StageName.QUEUE
    assert all(one.end_ns == other.start_ns for one, other in pairwise(stages))
    ended = marks[-1].kind is MarkKind.FINISHED
    assert (stages[-1].end_ns is not None) == ended
    if ended:
        assert sum(stage.seconds for stage in stages) * SECOND == round(marks[-1].at_ns - marks[0].at_ns)
    chunks = [chunk for stage in stages for chunk in stage.chunks]
    assert chunks == [Chunk(mark.at_ns, mark.value) for mark in marks if mark.kind is MarkKind.CHUNK]
    preempted = [stage.why for stage in stages if stage.name is StageName.PREEMPTED]
    assert preempted == [mark.why for mark in marks if mark.kind is MarkKind.PREEMPTED]


def test_one_history() -> None:
    marks = [
        Mark(MarkKind.QUEUED, 0),
        Mark(MarkKind.SCHEDULED, 1 * SECOND, 16, WaitReason.SLOTS),
        Mark(MarkKind.CHUNK, 1 * SECOND, 8),
        Mark(MarkKind.FIRST_TOKEN, 3 * SECOND),
        Mark(MarkKind.PREEMPTED, 4 * SECOND, why=WaitReason.MORE_URGENT),
        Mark(MarkKind.SCHEDULED, 6 * SECOND, 4, WaitReason.SLOTS),
        Mark(MarkKind.CHUNK, 6 * SECOND, 21),
        Mark(MarkKind.FINISHED, 9 * SECOND),
    ]
    assert stages_of(marks) == [
        Stage(StageName.QUEUE, 0, SECOND, WaitReason.SLOTS),
        Stage(StageName.PREFILL, SECOND, 3 * SECOND, found=16, chunks=(Chunk(SECOND, 8),)),
        Stage(StageName.DECODE, 3 * SECOND, 4 * SECOND),
        Stage(StageName.PREEMPTED, 4 * SECOND, 6 * SECOND, WaitReason.MORE_URGENT),
        Stage(StageName.DECODE, 6 * SECOND, 9 * SECOND, found=4, chunks=(Chunk(6 * SECOND, 21),)),
    ]
    stages = stages_of(marks)
    assert seconds_in(stages, StageName.DECODE) == 4
    assert seconds_in(stages, StageName.QUEUE, StageName.PREEMPTED) == 3
    assert seconds_in(stages_of(marks[:1]), StageName.QUEUE) is None, "its end is not known"
    assert seconds_in(stages_of(marks[:3]), StageName.DECODE) is None
    assert stages_of([]) == []
