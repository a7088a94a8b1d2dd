"""What happened on a host, as plain numbers: whoever exposes them makes metrics of them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Seconds."""


@dataclass
class Times:
    """How often something took how long: `counts[i]` at most `BOUNDS[i]` seconds and more than the bound before."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Once more."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


@dataclass
class Counters:
    """All of them only grow. `refusals` are by code; `drops` are images that were given up for others."""

    loads: int = 0
    wakes: int = 0
    sleeps: int = 0
    evictions: int = 0
    drops: int = 0
    deaths: int = 0
    failures: int = 0
    resizes: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    load_seconds: Times = field(default_factory=Times)
    wake_seconds: Times = field(default_factory=Times)
    wait_seconds: Times = field(default_factory=Times)
