"""Whether a prefix on the disk is read or computed again: the way that took less time of late.

Until both have been measured, the disk is read. When reading is the slower way, nothing would be read any more, and it
would go unnoticed that the disk is fast again. So after `RETRY_AFTER` sequences that computed what the disk has, a few
blocks are read all the same: a count decides, neither time nor chance. The cost of computing is learnt from every step
of prompts, by the size of the step: a token of a small step costs more, and steps are small where prefixes are read.

The model is simple: a token costs the same at any position of a context, and a block in host memory costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DECAY = 7 / 8
"""What remains of the weight of older measurements with each new one."""
RETRY_AFTER = 16
"""After this many sequences in a row that computed what lies on the disk, some of it is read for the next one."""
RETRY_BLOCKS = 8
"""Blocks that are read then: about a third of the weight of older measurements is left after them."""


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
    """Nanoseconds for each unit of an amount; older measurements count less and less."""

    amount: float = 0.0
    ns: float = 0.0

    def learn(self, amount: int, ns: int) -> None:
        self.amount = self.amount * DECAY + amount
        self.ns = self.ns * DECAY + ns

    def of(self, amount: int) -> float:
        """Predicted nanoseconds."""
        return self.ns / self.amount * amount


class Costs:
    """What reading and computing have taken, and which of them is predicted to take less."""

    def __init__(self) -> None:
        self._reading = _Average()
        self._computing: dict[int, _Average] = {}
        self._without = 0

    def learn_read(self, ns: int, *, ok: bool) -> None:
        """Reading a block took `ns` nanoseconds. A failed read counts as time without a block."""
        self._reading.learn(int(ok), ns)

    def learn_computed(self, tokens: int, ns: int) -> None:
        """A step of prompts computed `tokens` in `ns` nanoseconds. Steps are averaged by size, in powers of two."""
        self._computing.setdefault(tokens.bit_length(), _Average()).learn(tokens, ns)

    def choose(self, prospect: Prospect, block_size: int, *, again: bool = False) -> int:
        """How many blocks of a prefix are to be held in host memory: all, those that are `ready`, or a few more.

        `again`: it was asked before for this sequence, whose refusal has been counted: it is no reason to try the disk.
        """
        ready, gained, awaited = prospect
        if not gained or self._pays(awaited, gained * block_size):
            return ready + gained
        return ready if again or self._without < RETRY_AFTER else ready + min(gained, RETRY_BLOCKS)

    def went_with(self) -> None:
        """A prefix is read for a sequence."""
        self._without = 0

    def went_without(self) -> None:
        """A sequence computes what could have been read for it."""
        self._without += 1

    def _pays(self, blocks: int, tokens: int) -> bool:
        """Whether reading `blocks` takes less than computing `tokens`, by the steps whose size is nearest to that."""
        if not self._reading.amount or not self._computing:
            return True
        size = min(self._computing, key=lambda known: abs(known - tokens.bit_length()))
        return self._reading.of(blocks) <= self._computing[size].of(tokens)
