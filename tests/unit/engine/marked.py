"""Checks the marks of a request against what the scheduler planned for it."""

from __future__ import annotations

from itertools import pairwise

from plimsoll_runtime.engine.protocol.messages import Mark, MarkKind, RequestOutput, WaitReason
from plimsoll_runtime.engine.protocol.plan import ScheduledSequence
from plimsoll_runtime.engine.sequence import SequenceState

FOLLOWERS = {
    MarkKind.QUEUED: {MarkKind.SCHEDULED, MarkKind.FINISHED},
    MarkKind.SCHEDULED: {MarkKind.CHUNK, MarkKind.PREEMPTED, MarkKind.FINISHED, MarkKind.FIRST_TOKEN},
    MarkKind.CHUNK: {MarkKind.CHUNK, MarkKind.PREEMPTED, MarkKind.FIRST_TOKEN, MarkKind.FINISHED},
    MarkKind.FIRST_TOKEN: {MarkKind.CHUNK, MarkKind.PREEMPTED, MarkKind.SCHEDULED, MarkKind.FINISHED},
    # A step that was planned before the preemption may still sample the first token.
    MarkKind.PREEMPTED: {MarkKind.SCHEDULED, MarkKind.FINISHED, MarkKind.FIRST_TOKEN},
    MarkKind.FINISHED: set(),
}


class MarkedRequest:
    """The marks of one request so far, and the tokens that were planned for it."""

    def __init__(self, sequence: SequenceState, added_ns: int) -> None:
        self.marks: list[Mark] = []
        self._sequence = sequence
        self._added_ns = added_ns
        self._computed = 0
        self._prompt = 0

    def planned(self, entry: ScheduledSequence) -> None:
        """Count the tokens that a step computes, and those of the prompt."""
        self._computed += len(entry.token_ids)
        if entry.start < self._sequence.prompt_len:
            self._prompt += len(entry.token_ids)

    def sent(self, output: RequestOutput, now_ns: int) -> None:
        """Check the marks after an output."""
        self.marks += output.marks
        marks, kinds = self.marks, [mark.kind for mark in self.marks]
        assert kinds[:1] == [MarkKind.QUEUED], "it begins in the queue"
        assert marks[0].at_ns == self._added_ns
        assert all(one.at_ns <= other.at_ns for one, other in pairwise(marks)), f"not in order of time: {marks}"
        assert marks[-1].at_ns <= now_ns
        for one, other in pairwise(kinds):
            assert other in FOLLOWERS[one], f"{one.name} is followed by {other.name}"
        assert kinds.count(MarkKind.QUEUED) == 1
        preempted, scheduled = kinds.count(MarkKind.PREEMPTED), kinds.count(MarkKind.SCHEDULED)
        assert preempted <= scheduled <= preempted + 1
        assert all(mark.why is not WaitReason.NOTHING for mark in marks if mark.kind is MarkKind.PREEMPTED)
        assert kinds.count(MarkKind.FIRST_TOKEN) == bool(output.token_ids or self._sequence.output_ids)
        if output.finish_reason is not None:
            assert kinds[-1] is MarkKind.FINISHED
            self._check_chunks()
        else:
            assert MarkKind.FINISHED not in kinds

    def _check_chunks(self) -> None:
        chunks = [mark.value for mark in self.marks if mark.kind is MarkKind.CHUNK]
        assert all(value > 0 for value in chunks)
        # After a preemption, a chunk may have generated tokens too.
        preempted = any(mark.kind is MarkKind.PREEMPTED for mark in self.marks)
        most = self._computed if preempted else self._prompt
        assert self._prompt <= sum(chunks) <= most, f"{chunks} with {self._prompt} tokens of the prompt"
