"""The running sequences in order, each with its blocks and a slot."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from plimsoll_runtime.engine.kv.manager import KvCacheManager
from plimsoll_runtime.engine.sequence import Phase, SequenceState


class SlotPool:
    """Slots 0 .. count - 1. The smallest free one is taken first, so that a small batch stays compact."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = list(range(count))
        self._freed: list[int] = []
        heapify(self._free)

    @property
    def available(self) -> int:
        """Number of free slots."""
        return len(self._free)

    def take(self) -> int:
        """Return the smallest free slot. Raises IndexError if there is none."""
        return heappop(self._free)

    def release(self, slot: int) -> None:
        """Free a slot; the next step's plan reports it to the runner."""
        heappush(self._free, slot)
        self._freed.append(slot)

    def collect_freed(self) -> list[int]:
        """Return the slots freed since the last call."""
        freed, self._freed = self._freed, []
        return freed

    def check_integrity(self, taken: list[int]) -> None:
        """Raise AssertionError unless every slot is either free or in `taken`, once."""
        assert sorted(self._free + taken) == list(range(self._count)), "a slot is lost or taken twice"


class RunningSequences:
    """The running `sequences` in order of their keys, of which the last is preempted first, and the `slots`."""

    def __init__(self, kv: KvCacheManager, slots: int) -> None:
        self.sequences: list[SequenceState] = []
        self.slots = SlotPool(slots)
        self._kv = kv

    def enter(self, sequence: SequenceState) -> None:
        """Assign a slot to a sequence that has its blocks."""
        sequence.phase = Phase.RUNNING
        sequence.slot = self.slots.take()
        insort(self.sequences, sequence, key=_order_key)

    def behind(self, order_key: tuple[int, ...]) -> int:
        """Return the number of running sequences with a higher order key."""
        return len(self.sequences) - bisect_right(self.sequences, order_key, key=_order_key)

    def pop(self) -> SequenceState:
        """Remove the last sequence, release its blocks and slot, and return it."""
        sequence = self.sequences.pop()
        self.leave(sequence)
        return sequence

    def leave(self, sequence: SequenceState) -> None:
        """Release the blocks and slot of a sequence. The caller removes it from `sequences` afterwards."""
        self._kv.release(sequence)
        self.slots.release(sequence.slot)
        sequence.slot = -1

    def drop_finished(self) -> None:
        """Remove sequences that have ended."""
        self.sequences = [s for s in self.sequences if s.phase is Phase.RUNNING]

    def check_integrity(self, sequences: Sequence[SequenceState]) -> None:
        """Raise AssertionError if slots, order keys and phases of all `sequences` disagree."""
        self.slots.check_integrity([s.slot for s in self.sequences])
        keys = [_order_key(s) for s in self.sequences]
        assert keys == sorted(keys), "running sequences are out of order"
        running = sum(s.phase is Phase.RUNNING for s in sequences)
        assert running == len(self.sequences), "a running sequence is lost"


def _order_key(sequence: SequenceState) -> tuple[int, ...]:
    return sequence.queue.order_key
