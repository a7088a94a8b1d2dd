"""Judges a series of memory readings of a process for growth.

Reused memory reaches a level: buffers grow with the largest batch so far, in steps that become rare. A leak continues.
So the second half of the series is judged: the median slope of all pairs of its readings (Theil-Sen, which single peaks
do not move) over that half may be at most `ALLOWED_GROWTH`. No reading may be more than `ALLOWED_PEAK` above the
median, because a memory limit would kill a process with such a peak.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

MIB = 2**20
ALLOWED_GROWTH = 6 * MIB
ALLOWED_PEAK = 256 * MIB
"""Log probabilities of a long prompt temporarily take up to 128 MiB of logits, and as much for their exponentials."""
FEWEST = 12
"""Minimum number of readings for a meaningful slope."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Resident bytes at a time in seconds."""

    seconds: float
    resident: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes by which the second half of a series rises, and the peak of the series over its median."""

    over_half: float
    per_hour: float
    peak: int

    @property
    def complaint(self) -> str | None:
        """Return what is wrong, with numbers, or None."""
        if self.over_half > ALLOWED_GROWTH:
            return (
                f"grew by {self.over_half / MIB:.1f} MiB in the second half ({self.per_hour / MIB:.1f} MiB an hour), "
                f"more than {ALLOWED_GROWTH / MIB:g} MiB"
            )
        if self.peak > ALLOWED_PEAK:
            return f"peaked {self.peak / MIB:.1f} MiB above its median, more than {ALLOWED_PEAK / MIB:g} MiB"
        return None


def growth(readings: Sequence[Reading]) -> Growth:
    """Judge a series. Raises ValueError if it is too short."""
    if len(readings) < FEWEST:
        raise ValueError(f"{len(readings)} readings are too few to judge; {FEWEST} are needed")
    half = readings[len(readings) // 2 :]
    slope = statistics.median((b.resident - a.resident) / (b.seconds - a.seconds) for a, b in combinations(half, 2))
    sizes = [r.resident for r in readings]
    lasted = half[-1].seconds - half[0].seconds
    return Growth(slope * lasted, slope * 3600, max(sizes) - round(statistics.median(sizes)))
