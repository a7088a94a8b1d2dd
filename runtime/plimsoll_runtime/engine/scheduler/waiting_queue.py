"""The queues of sequences without a slot: by order key, and by the deadline of the first token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from plimsoll_runtime.engine.sequence import Phase, SequenceState

SLACK = 64


class DeadlineQueue:
    """The sequences with a deadline, as a heap by due time. Entries of requests that have a token or have ended are
    stale: they are skipped when they reach the top, and all are dropped when the heap has doubled.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, SequenceState]] = []
        self._limit = SLACK

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, sequence: SequenceState) -> None:
        """Watch a sequence, if it has a deadline."""
        if sequence.queue.due_ns is None:
            return
        heappush(self._heap, (sequence.queue.due_ns, sequence.queue.arrival, sequence))
        if len(self._heap) > self._limit:
            self._heap = [entry for entry in self._heap if _waits(entry[2])]
            heapify(self._heap)
            self._limit = 2 * len(self._heap) + SLACK

    def pop_missed(self, now_ns: int) -> list[SequenceState]:
        """Remove and return the sequences whose deadline has passed before their first token."""
        missed = []
        while self._heap and self._heap[0][0] <= now_ns:
            sequence = heappop(self._heap)[2]
            if _waits(sequence):
                missed.append(sequence)
        return missed

    def check_integrity(self, live: list[SequenceState]) -> None:
        """Raise AssertionError if a deadline is not watched, or if there are too many stale entries."""
        watched = {sequence.request_id for _, _, sequence in self._heap if _waits(sequence)}
        wanted = {s.request_id for s in live if s.queue.due_ns is not None and not s.report.answered}
        assert watched == wanted, "a deadline is lost, or watched for no request"
        assert len(self._heap) <= self._limit, "too many stale entries"


def _waits(sequence: SequenceState) -> bool:
    return not sequence.report.answered and sequence.phase is not Phase.FINISHED


class WaitingQueue:
    """The waiting sequences, as a heap by order key. Entries of sequences that have left the queue or got another key
    are stale, so that removal costs nothing.

    Stale entries are dropped when they reach the top, or before they are the majority. `update_key` computes the order
    key of a sequence again; with it, `refresh` moves some of the sequences.
    """

    def __init__(self, update_key: Callable[[SequenceState], None] | None = None) -> None:
        self._heap: list[tuple[tuple[int, ...], int, SequenceState]] = []
        self._limit = SLACK
        self._length = 0
        self._update_key = update_key
        self._turns: OrderedDict[int, SequenceState] = OrderedDict()

    def __len__(self) -> int:
        return self._length

    def push(self, sequence: SequenceState) -> None:
        """Add a sequence in phase WAITING."""
        self._length += 1
        self._enter(sequence)
        if self._update_key is not None:
            self._turns[sequence.queue.arrival] = sequence

    def peek(self) -> SequenceState | None:
        """Return the first sequence without removing it; None if the queue is empty."""
        while self._heap:
            key, _, sequence = self._heap[0]
            if _is_true(key, sequence):
                return sequence
            heappop(self._heap)
        return None

    def pop(self) -> SequenceState:
        """Remove and return the first sequence. Raises IndexError if the queue is empty."""
        sequence = self.peek()
        if sequence is None:
            raise IndexError("the waiting queue is empty")
        heappop(self._heap)
        self._gone(sequence)
        return sequence

    def leave(self, sequence: SequenceState) -> None:
        """Remove a sequence from anywhere in the queue. Its phase has changed already."""
        assert sequence.phase is not Phase.WAITING
        self._gone(sequence)

    def front(self, count: int) -> list[SequenceState]:
        """Return the first `count` sequences in order, or fewer after many removals, because the work is bounded."""
        found: dict[SequenceState, None] = {}
        nodes = [(self._heap[0][:2], 0)] if self._heap else []
        visits = 2 * count + SLACK
        while nodes and visits and len(found) < count:
            visits -= 1
            _, index = heappop(nodes)
            key, _, sequence = self._heap[index]
            if _is_true(key, sequence):
                found[sequence] = None
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(self._heap):
                    heappush(nodes, (self._heap[child][:2], child))
        return list(found)

    def refresh(self, count: int) -> None:
        """Compute the order keys of the first sequence and of the next `count` in rotation again, and move these."""
        first = self.peek()
        if first is None:
            return
        self._move(first)
        for _ in range(min(count, len(self._turns))):
            arrival, sequence = self._turns.popitem(last=False)
            self._turns[arrival] = sequence
            self._move(sequence)

    def _gone(self, sequence: SequenceState) -> None:
        self._length -= 1
        self._turns.pop(sequence.queue.arrival, None)

    def _move(self, sequence: SequenceState) -> None:
        assert self._update_key is not None
        before = sequence.queue.order_key
        self._update_key(sequence)
        if sequence.queue.order_key != before:
            self._enter(sequence)

    def _enter(self, sequence: SequenceState) -> None:
        heappush(self._heap, (sequence.queue.order_key, sequence.queue.arrival, sequence))
        if len(self._heap) > self._limit:
            entries = {arrival: (key, arrival, s) for key, arrival, s in self._heap if _is_true(key, s)}
            self._heap = list(entries.values())
            heapify(self._heap)
            self._limit = 2 * len(self._heap) + SLACK

    def check_integrity(self) -> None:
        """Raise AssertionError if a waiting sequence is missing, or a kept one does not wait."""
        found = {arrival for key, arrival, sequence in self._heap if _is_true(key, sequence)}
        assert len(found) == self._length, f"{self._length} sequences wait, but the heap has {len(found)}"
        assert len(self._heap) <= self._limit, "too many stale entries"
        if self._update_key is not None:
            assert set(self._turns) == found, f"{len(self._turns)} sequences are in the rotation, but {len(found)} wait"


def _is_true(key: tuple[int, ...], sequence: SequenceState) -> bool:
    return sequence.phase is Phase.WAITING and sequence.queue.order_key == key
