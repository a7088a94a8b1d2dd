"""Whether what the disk has of a prefix is read or computed again: what either took of late decides.

Until both have been seen, the disk is read. Once reading was found to be the slower way nothing would be read any
longer, and nobody would notice that the disk is fast again: so now and then a few blocks are read all the same. That
goes by how many have gone without, never by time or by chance. What computing takes is learnt from every step of
prompts, by how many tokens it had: those of a small step cost more, and where prefixes are read the steps are small.

A token is taken to cost the same wherever it stands in a context, and to come back from host memory for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DECAY = 7 / 8
"""Each block that is read, and each step of prompts, leaves so much of the weight of those like it before."""
RETRY_AFTER = 16
"""When so many in a row have computed what lies on the disk, the next one has some of it read."""
RETRY_BLOCKS = 8
"""So much of it, which leaves about a third of the weight of what was known before."""


class Prospect(NamedTuple):
    """What reading could do for a sequence that waits, in blocks of its prefix.

    The first `ready` lie in host memory; `gained` behind them would not have to be computed once `awaited` have been
    read, those included that are read for others before.
    """

    ready: int
    gained: int
    awaited: int


@dataclass(slots=True)
class _Average:
    """What one of something takes, in nanoseconds; older ones count less and less."""

    amount: float = 0.0
    ns: float = 0.0

    def learn(self, amount: int, ns: int) -> None:
        self.amount = self.amount * DECAY + amount
        self.ns = self.ns * DECAY + ns

    def of(self, amount: int) -> float:
        """What so much takes."""
        return self.ns / self.amount * amount


class Costs:
    """What reading and computing have taken, and which of them is predicted to take less."""

    def __init__(self) -> None:
        self._reading = _Average()
        self._computing: dict[int, _Average] = {}
        self._without = 0

    def learn_read(self, ns: int, *, ok: bool) -> None:
        """A block was read in so many nanoseconds. Where that failed they were spent for nothing."""
        self._reading.learn(int(ok), ns)

    def learn_computed(self, tokens: int, ns: int) -> None:
        """A step computed so many tokens, most of them of prompts. Those from a power of two to the next are alike."""
        self._computing.setdefault(tokens.bit_length(), _Average()).learn(tokens, ns)

    def choose(self, prospect: Prospect, block_size: int, *, again: bool = False) -> int:
        """How many blocks of a prefix are to be held in host memory: all, those that are `ready`, or a few more.

        Who is asked about `again` was counted among those that go without, and is not the next one after them.
        """
        ready, gained, awaited = prospect
        if not gained or self._pays(awaited, gained * block_size):
            return ready + gained
        return ready if again or self._without < RETRY_AFTER else ready + min(gained, RETRY_BLOCKS)

    def went_with(self) -> None:
        """Something is read for a sequence."""
        self._without = 0

    def went_without(self) -> None:
        """A sequence computes what could have been read for it."""
        self._without += 1

    def _pays(self, blocks: int, tokens: int) -> bool:
        """Whether so many blocks are read sooner than so many tokens computed, in steps most like one of so many."""
        if not self._reading.amount or not self._computing:
            return True
        size = min(self._computing, key=lambda known: abs(known - tokens.bit_length()))
        return self._reading.of(blocks) <= self._computing[size].of(tokens)
