"""How much a model is asked for: uses that count half after five minutes, and the rhythm in which they come."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

HALF_LIFE = 300.0
"""Seconds after which a use counts half."""
QUIET = 60.0
"""Seconds without a use after which the next one begins a new burst."""
KEPT = 6
"""Beginnings of bursts that are remembered."""
LEAST_BURSTS = 4
REGULAR = 0.1
"""The most that any gap between bursts may differ from their mean, as a share of it, for them to be a rhythm."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Times are seconds of one clock. `last_used` is minus infinity before the first use."""

    _count: float = 0.0
    last_used: float = -math.inf
    _bursts: tuple[float, ...] = ()

    def used(self, now: float) -> Demand:
        """One use more."""
        quiet = now - self.last_used > QUIET
        bursts = (*self._bursts, now)[-KEPT:] if quiet else self._bursts
        return replace(self, _count=self.frequency(now) + 1.0, last_used=now, _bursts=bursts)

    def frequency(self, now: float) -> float:
        """Uses, each halved for every five minutes that have passed since."""
        if self._count == 0.0:
            return 0.0
        return self._count * math.exp2(-max(0.0, now - self.last_used) / HALF_LIFE)

    def rate(self, now: float) -> float:
        """Uses a second: those of a steady demand with this frequency."""
        return self.frequency(now) * math.log(2) / HALF_LIFE

    def due(self) -> float | None:
        """When the next burst begins, if they come at regular times."""
        if len(self._bursts) < LEAST_BURSTS:
            return None
        gaps = [after - before for before, after in zip(self._bursts, self._bursts[1:], strict=False)]
        mean = sum(gaps) / len(gaps)
        if any(abs(gap - mean) > REGULAR * mean for gap in gaps):
            return None
        return self._bursts[-1] + mean
