"""The time of day, and how far clocks of other machines are believed."""

from __future__ import annotations

from datetime import UTC, datetime

AHEAD_SECONDS = 300.0
"""How far clocks of machines may differ."""
FROM_THE_FUTURE = f"it comes from more than {AHEAD_SECONDS:.0f} s in the future: set the clock of its node"


def utc_now() -> datetime:
    """The time of day."""
    return datetime.now(UTC)
