"""What a rate that changes will be in a while: Holt's method, whose trend fades (Gardner and McKenzie, 1985)."""

from __future__ import annotations

from dataclasses import dataclass

LEVEL, TREND, FADE = 0.3, 0.1, 0.9
"""Weights of what is new in the level and in the trend, and what is left of the trend after each step."""
MOST = 3.0
"""No forecast is beyond so many times the level: what has just begun to rise would rise to the sky."""


@dataclass(slots=True)
class Forecast:
    """Of a value that is seen once a step."""

    level: float | None = None
    trend: float = 0.0

    def see(self, value: float) -> None:
        """One step's value."""
        if self.level is None:
            self.level = value
            return
        expected = self.level + FADE * self.trend
        before = self.level
        self.level = LEVEL * value + (1 - LEVEL) * expected
        self.trend = TREND * (self.level - before) + (1 - TREND) * FADE * self.trend

    def ahead(self, steps: float) -> float:
        """What is expected after so many steps; 0 before anything was seen."""
        if self.level is None:
            return 0.0
        faded: float = FADE * (1 - FADE**steps) / (1 - FADE)
        return min(MOST * max(self.level, 0.0), max(0.0, self.level + faded * self.trend))
