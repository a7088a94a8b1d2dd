"""Decides whether a prefix on disk is read or computed again, by recent measurements of both.

Until both have been measured, the disk is read. If reading is slower, the engine stops reading and cannot notice that
the disk has become fast again. So after `RETRY_AFTER` sequences that computed blocks available on disk, a few blocks
are read anyway; a count decides this, not time or chance. The cost of computing is learnt from every prefill step, by
step size: a token costs more in a small step, and steps that restore prefixes are small.

The model is simple: a token costs the same at any position, and a block in host memory costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DECAY = 7 / 8
"""Factor applied to the weight of older measurements with each new one."""
RETRY_AFTER = 16
"""After this many sequences in a row that computed blocks available on disk, some blocks are read for the next one."""
RETRY_BLOCKS = 8
"""Number of blocks that this trial reads. They leave older measurements about a third of their weight."""


class Prospect(NamedTuple):
    """Blocks of a waiting sequence's prefix that the tiers have.

    The first `ready` blocks are in host memory. The next `gained` blocks are usable after `awaited` reads of blocks
    from disk, which include reads already queued for other sequences.
    """

    ready: int
    gained: int
    awaited: int


@dataclass(slots=True)
class _Average:
    """Moving average of nanoseconds per unit, weighted by amount."""

    amount: float = 0.0
    ns: float = 0.0

    def learn(self, amount: int, ns: int) -> None:
        self.amount = self.amount * DECAY + amount
        self.ns = self.ns * DECAY + ns

    def of(self, amount: int) -> float:
        """Return the predicted nanoseconds for an amount."""
        return self.ns / self.amount * amount


class Costs:
    """Measured costs of reading and computing, and the choice between them."""

    def __init__(self) -> None:
        self._reading = _Average()
        self._computing: dict[int, _Average] = {}
        self._without = 0

    def learn_read(self, ns: int, *, ok: bool) -> None:
        """Record that reading a block took `ns` nanoseconds. A failed read adds time without a block."""
        self._reading.learn(int(ok), ns)

    def learn_computed(self, tokens: int, ns: int) -> None:
        """Record that a prefill step computed `tokens` in `ns` nanoseconds. Averages are kept by step size, in powers
        of two.
        """
        self._computing.setdefault(tokens.bit_length(), _Average()).learn(tokens, ns)

    def choose(self, prospect: Prospect, block_size: int, *, again: bool = False) -> int:
        """Return how many blocks of a prefix to hold in host memory: all, those that are `ready`, or a few more.

        `again`: an earlier call counted the sequence, so this one does not trigger a trial of the disk.
        """
        ready, gained, awaited = prospect
        if not gained or self._pays(awaited, gained * block_size):
            return ready + gained
        return ready if again or self._without < RETRY_AFTER else ready + min(gained, RETRY_BLOCKS)

    def went_with(self) -> None:
        """Record that a prefix is read for a sequence."""
        self._without = 0

    def went_without(self) -> None:
        """Record that a sequence computes blocks that could have been read."""
        self._without += 1

    def _pays(self, blocks: int, tokens: int) -> bool:
        """Return whether reading `blocks` is faster than computing `tokens` in steps of the nearest measured size."""
        if not self._reading.amount or not self._computing:
            return True
        size = min(self._computing, key=lambda known: abs(known - tokens.bit_length()))
        return self._reading.of(blocks) <= self._computing[size].of(tokens)
