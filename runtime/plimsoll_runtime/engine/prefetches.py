"""Whose prefix is read from the disk ahead of its turn, and for how long it stands aside for that.

What is read for a sequence is held for it in frames of host memory until it runs, and frames are few: who will not run
for minutes must not hold any. So only those have something read who are near the front: as many as could begin at once,
and some more for the time that reading takes. Who falls behind again lets go of what was read, which then is found as
long as nobody else needs the frames.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from plimsoll_runtime.engine.policy import SECOND_NS
from plimsoll_runtime.engine.sequence import Phase, SequenceState
from plimsoll_runtime.engine.tiers.prefixes import TieredPrefixes

PREFETCH_NS = 2 * SECOND_NS
"""How long a sequence waits for its prefix to be read from the disk. Then it computes what has not arrived."""
AHEAD_SHARE = 8
"""Prefixes are prefetched for sequences near the front: those that could begin at once, and one more for every
`AHEAD_SHARE` sequences that may run.

Where all slots are taken, about that share of them ends in the time that a few hundred blocks take to be read.
"""


class Prefetches:
    """Sequences that wait aside while their prefixes are prefetched from the disk, and those that are back in line.

    Without `tiers` nobody does. `clock` gives nanoseconds.
    """

    def __init__(self, tiers: TieredPrefixes | None, max_sequences: int, clock: Callable[[], int]) -> None:
        self.ahead = max(1, max_sequences // AHEAD_SHARE)
        self._tiers = tiers
        self._most = max_sequences + self.ahead
        self._clock = clock
        self._aside: dict[SequenceState, int] = {}
        self._ready: dict[SequenceState, None] = {}

    def __len__(self) -> int:
        """Those that stand aside."""
        return len(self._aside)

    @property
    def active(self) -> bool:
        """Whether there is something to read, or something read that is held."""
        tiers = self._tiers
        return tiers is not None and bool(tiers.index.disk_used or self._ready)

    def places(self, free: int) -> int:
        """How many in line are near the front, with so many that could begin at once; those who stand aside count."""
        return max(0, free + self.ahead - len(self._aside))

    def full(self, free: int) -> bool:
        """Whether as many have something read for them, or hold it, as are near the front."""
        return len(self._ready) >= self.places(free)

    def begin(self, sequence: SequenceState) -> bool:
        """Start to read what the disk has of a waiting sequence's prefix; whether it stands aside for that."""
        begun = self._tiers is not None and self._tiers.prefetch(sequence)
        sequence.sought = True
        if not begun:
            return False
        sequence.phase = Phase.PREFETCHING
        self._aside[sequence] = self._clock() + PREFETCH_NS
        return True

    def holds_up(self, sequence: SequenceState, free: int) -> bool:
        """Whether the first in line has to wait until one of those that stand aside is in line again.

        They end within PREFETCH_NS, whatever the disk does.
        """
        return self._tiers is not None and not self.places(free) and self._tiers.would_prefetch(sequence)

    def wait(self, seconds: float) -> None:
        """Where somebody stands aside: return once something was read, or after so many seconds."""
        if self._aside and self._tiers is not None:
            self._tiers.index.wait(seconds)

    def take_ended(self) -> list[SequenceState]:
        """Those whose prefix has been read, or is not in time: they are to be put in line again, at their rank."""
        if not self._aside:
            return []
        now = self._clock()
        over = [
            s for s, due in self._aside.items() if now >= due or (s.prefetch is not None and not s.prefetch.loading)
        ]
        for sequence in over:
            del self._aside[sequence]
            self._ready[sequence] = None
            sequence.phase = Phase.WAITING
        return over

    def keep_only(self, front: Collection[SequenceState]) -> None:
        """Drop what was read for sequences that are back in line but not near the `front` of it."""
        for sequence in self._ready.keys() - front:
            self.end(sequence)

    def end(self, sequence: SequenceState) -> None:
        """A sequence runs, is over, or has fallen behind: nothing is read or held for it any longer."""
        self._aside.pop(sequence, None)
        self._ready.pop(sequence, None)
        if self._tiers is not None:
            self._tiers.end_prefetch(sequence)
        sequence.sought = False

    def check_integrity(self, sequences: Iterable[SequenceState]) -> None:
        """Raises AssertionError where somebody holds frames of the tiers whom nobody knows, or too many stand aside."""
        assert {s for s in sequences if s.prefetch is not None} == {*self._aside, *self._ready}, "a prefetch is lost"
        assert all(s.phase is Phase.PREFETCHING for s in self._aside), "who is in line or runs stands aside"
        assert all(s.phase is Phase.WAITING for s in self._ready), "what was read is held for somebody out of line"
        assert len(self._aside) <= self._most, f"{len(self._aside)} wait for the disk at once"
