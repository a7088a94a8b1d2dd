"""Checks that the machine is idle before a round, because a ratio means little while other programs use cores."""

from __future__ import annotations

import psutil

WINDOW_SECONDS = 0.5
TOLERATED_CORES = 0.15


def cores_in_use() -> float:
    """Return the mean number of busy cores over half a second in which this benchmark computes nothing."""
    return float(psutil.cpu_percent(WINDOW_SECONDS)) / 100 * (psutil.cpu_count() or 1)


def complaint(cores: float) -> str | None:
    """Return a warning, or None if the machine is idle enough."""
    if cores <= TOLERATED_CORES:
        return None
    return f"other programs use {cores:.1f} cores; these figures are unreliable"
