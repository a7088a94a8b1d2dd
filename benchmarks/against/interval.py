"""How sure a ratio is that was measured in rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """Geometric mean of ratios with its confidence interval."""

    mean: float
    lower: float
    upper: float


def interval_of(ratios: Sequence[float]) -> Interval:
    """Student's interval of the logarithms, at 95 %. Raises ValueError for fewer than two ratios."""
    if len(ratios) < 2:
        raise ValueError(f"{len(ratios)} ratio has no interval: measure two rounds or more")
    from scipy import stats

    logs = [math.log(ratio) for ratio in ratios]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    half = error * float(stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
