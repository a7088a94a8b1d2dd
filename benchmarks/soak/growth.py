"""When a process grows: the rule by which a series of memory readings is judged.

Memory that is used again and again finds its level: buffers grow with the largest batch that was seen, in steps that
become rare. A leak goes on. So the second half of the series is judged: of all pairs of its readings the median slope
is taken (Theil and Sen's: single peaks do not move it), and what it comes to over that half may be at most
`ALLOWED_GROWTH`. And no reading at all may be more than `ALLOWED_PEAK` above the median: a process that takes much for
a moment is a process that a limit kills.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

MIB = 2**20
ALLOWED_GROWTH = 6 * MIB
ALLOWED_PEAK = 256 * MIB
"""Log probabilities of a long prompt take up to 128 MiB of logits for a moment, and their exponentials."""
FEWEST = 12
"""Readings below which the slope of their half says nothing."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Resident bytes at a time in seconds."""

    seconds: float
    resident: int


@dataclass(frozen=True, slots=True)
class Growth:
    """What a series says: bytes by which its second half rises, and the peak of all of it over its median."""

    over_half: float
    per_hour: float
    peak: int

    @property
    def complaint(self) -> str | None:
        """What is wrong, in words with numbers; None where nothing is."""
        if self.over_half > ALLOWED_GROWTH:
            return (
                f"grew by {self.over_half / MIB:.1f} MiB in the second half ({self.per_hour / MIB:.1f} MiB an hour), "
                f"more than {ALLOWED_GROWTH / MIB:g} MiB"
            )
        if self.peak > ALLOWED_PEAK:
            return f"peaked {self.peak / MIB:.1f} MiB above its median, more than {ALLOWED_PEAK / MIB:g} MiB"
        return None


def growth(readings: Sequence[Reading]) -> Growth:
    """Judge a series. Raises ValueError when it is too short to judge."""
    if len(readings) < FEWEST:
        raise ValueError(f"{len(readings)} readings are too few to judge; {FEWEST} are needed")
    half = readings[len(readings) // 2 :]
    slope = statistics.median((b.resident - a.resident) / (b.seconds - a.seconds) for a, b in combinations(half, 2))
    sizes = [r.resident for r in readings]
    lasted = half[-1].seconds - half[0].seconds
    return Growth(slope * lasted, slope * 3600, max(sizes) - round(statistics.median(sizes)))
