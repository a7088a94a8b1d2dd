"""The queue of sequences that have no slot yet, in the order of their rank."""

from __future__ import annotations

from heapq import heappop, heappush

from plimsoll_runtime.engine.sequence import Phase, SequenceState


class WaitingQueue:
    """A heap by rank. What is aborted while it waits is skipped when it comes up: removal costs nothing."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, ...], int, SequenceState]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, sequence: SequenceState) -> None:
        """Add a sequence in phase WAITING."""
        heappush(self._heap, (sequence.rank, sequence.arrival, sequence))
        self._length += 1

    def peek(self) -> SequenceState | None:
        """The first in line, which stays there."""
        while self._heap:
            sequence = self._heap[0][2]
            if sequence.phase is Phase.WAITING:
                return sequence
            heappop(self._heap)
        return None

    def pop(self) -> SequenceState:
        """Take the first in line. Raises IndexError when nobody waits."""
        sequence = self.peek()
        if sequence is None:
            raise IndexError("nobody waits")
        heappop(self._heap)
        self._length -= 1
        return sequence

    def discard(self, sequence: SequenceState) -> None:
        """Note that a waiting sequence has just been finished by somebody else."""
        assert sequence.phase is Phase.FINISHED
        self._length -= 1
