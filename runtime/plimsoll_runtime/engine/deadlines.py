"""Requests whose first token is wanted by a deadline."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from plimsoll_runtime.engine.sequence import Phase, SequenceState

SLACK = 64


class DeadlineQueue:
    """A heap by due time. Entries of requests that have answered or ended are stale: they are skipped when they come
    up, and all dropped when the heap has doubled.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, SequenceState]] = []
        self._limit = SLACK

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, sequence: SequenceState) -> None:
        """Watch a sequence, if it has a deadline."""
        if sequence.due_ns is None:
            return
        heappush(self._heap, (sequence.due_ns, sequence.arrival, sequence))
        if len(self._heap) > self._limit:
            self._heap = [entry for entry in self._heap if _waits(entry[2])]
            heapify(self._heap)
            self._limit = 2 * len(self._heap) + SLACK

    def pop_missed(self, now_ns: int) -> list[SequenceState]:
        """Take those whose deadline has passed before their first token."""
        missed = []
        while self._heap and self._heap[0][0] <= now_ns:
            sequence = heappop(self._heap)[2]
            if _waits(sequence):
                missed.append(sequence)
        return missed

    def check_integrity(self, live: list[SequenceState]) -> None:
        """Raises AssertionError when a deadline is not watched, or stale entries are too many."""
        watched = {sequence.request_id for _, _, sequence in self._heap if _waits(sequence)}
        wanted = {s.request_id for s in live if s.due_ns is not None and not s.answered}
        assert watched == wanted, "a deadline is lost, or watched for no request"
        assert len(self._heap) <= self._limit, "stale entries pile up"


def _waits(sequence: SequenceState) -> bool:
    return not sequence.answered and sequence.phase is not Phase.FINISHED
