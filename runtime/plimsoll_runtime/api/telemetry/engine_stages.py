"""The stages of a request in the engine, from the marks that the engine sent."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from plimsoll_runtime.engine.protocol.messages import Mark, MarkKind, WaitReason


class StageName(Enum):
    """What a request does in the engine. A stage lasts until the next one begins."""

    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"


class Chunk(NamedTuple):
    """Tokens that one step computes, planned at a time in nanoseconds of the monotonic clock."""

    at_ns: int
    tokens: int


class Stage(NamedTuple):
    """One stage, in nanoseconds of the monotonic clock. `end_ns` None: the engine has not told its end.

    `why`: what the request waited for in QUEUE, and why it was preempted in PREEMPTED. `found`: tokens that it need not
    compute, in a stage that follows one of these.
    """

    name: StageName
    start_ns: int
    end_ns: int | None
    why: WaitReason = WaitReason.NOTHING
    found: int = 0
    chunks: Sequence[Chunk] = ()

    @property
    def seconds(self) -> float:
        """Duration; 0 if it is not known."""
        return 0.0 if self.end_ns is None else (self.end_ns - self.start_ns) / 1e9


WAITS = (StageName.QUEUE, StageName.PREEMPTED)


def stages_of(marks: Sequence[Mark]) -> list[Stage]:
    """Return the stages in order. After a preemption before its first token a request is in PREFILL again, later in
    DECODE, whose chunks are then the tokens that are computed again.
    """
    stages: list[Stage] = []
    chunks: list[Chunk] = []
    answered = False
    for mark in marks:
        if mark.kind is MarkKind.CHUNK:
            chunks.append(Chunk(mark.at_ns, mark.value))
            continue
        if stages and stages[-1].end_ns is None:
            last = stages[-1]._replace(end_ns=mark.at_ns, chunks=tuple(chunks))
            waited = mark.kind is MarkKind.SCHEDULED and last.name is StageName.QUEUE
            stages[-1] = last._replace(why=mark.why) if waited else last
        chunks = []
        if mark.kind is MarkKind.QUEUED:
            stages.append(Stage(StageName.QUEUE, mark.at_ns, None))
        elif mark.kind is MarkKind.PREEMPTED:
            stages.append(Stage(StageName.PREEMPTED, mark.at_ns, None, mark.why))
        elif mark.kind is MarkKind.SCHEDULED:
            name = StageName.DECODE if answered else StageName.PREFILL
            stages.append(Stage(name, mark.at_ns, None, found=mark.value))
        elif mark.kind is MarkKind.FIRST_TOKEN:
            answered = True
            stages.append(Stage(StageName.DECODE, mark.at_ns, None))
    if stages and chunks:
        stages[-1] = stages[-1]._replace(chunks=tuple(chunks))
    return stages


def seconds_in(stages: Sequence[Stage], *names: StageName) -> float | None:
    """Return the time in all stages with these names; None if there is none, or if the end of one is not known."""
    found = [stage for stage in stages if stage.name in names]
    return None if not found or any(stage.end_ns is None for stage in found) else sum(s.seconds for s in found)
