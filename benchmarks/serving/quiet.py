"""Whether the machine is at rest before a round: a ratio means little while something else takes a core."""

from __future__ import annotations

import psutil

WINDOW_SECONDS = 0.5
TOLERATED_CORES = 0.15


def cores_in_use() -> float:
    """Cores' worth of work that went on during half a second, while nothing of ours is asked for anything."""
    return float(psutil.cpu_percent(WINDOW_SECONDS)) / 100 * (psutil.cpu_count() or 1)


def complaint(cores: float) -> str | None:
    """What to say about it, or None when the machine is quiet enough."""
    if cores <= TOLERATED_CORES:
        return None
    return f"not quiet: others use {cores:.1f} cores, and the figures of this round suffer"
