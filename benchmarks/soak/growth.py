"""When a process grows: the rule by which a series of memory readings is judged.

Memory that is used again and again goes up and down around a level; a leak goes up with the requests. So of all
pairs of readings the median slope is taken (Theil and Sen's: single peaks do not move it), and what it comes to over
the whole series may be at most `ALLOWED_GROWTH`. A peak may stand at most `ALLOWED_PEAK` above the series' median:
a process that takes much for a moment is a process that a limit kills.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

MIB = 2**20
ALLOWED_GROWTH = 12 * MIB
ALLOWED_PEAK = 64 * MIB
FEWEST = 8
"""Readings below which a slope says nothing."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Resident bytes at a time in seconds."""

    seconds: float
    resident: int


@dataclass(frozen=True, slots=True)
class Growth:
    """What a series says: bytes by which it rises from its first to its last reading, and its peak over the median."""

    over_series: float
    per_hour: float
    peak: int

    @property
    def complaint(self) -> str | None:
        """What is wrong, in words with numbers; None where nothing is."""
        if self.over_series > ALLOWED_GROWTH:
            return (
                f"grew by {self.over_series / MIB:.1f} MiB ({self.per_hour / MIB:.1f} MiB an hour), "
                f"more than {ALLOWED_GROWTH / MIB:g} MiB"
            )
        if self.peak > ALLOWED_PEAK:
            return f"peaked {self.peak / MIB:.1f} MiB above its median, more than {ALLOWED_PEAK / MIB:g} MiB"
        return None


def growth(readings: Sequence[Reading]) -> Growth:
    """Judge a series. Raises ValueError when it is too short to judge."""
    if len(readings) < FEWEST:
        raise ValueError(f"{len(readings)} readings are too few to judge; {FEWEST} are needed")
    slope = statistics.median((b.resident - a.resident) / (b.seconds - a.seconds) for a, b in combinations(readings, 2))
    sizes = [r.resident for r in readings]
    lasted = readings[-1].seconds - readings[0].seconds
    return Growth(slope * lasted, slope * 3600, max(sizes) - round(statistics.median(sizes)))
