"""The present time, and the accepted difference between clocks of machines."""

from __future__ import annotations

from datetime import UTC, datetime

AHEAD_SECONDS = 300.0
"""The accepted difference between clocks of machines."""
FROM_THE_FUTURE = f"its time is more than {AHEAD_SECONDS:.0f} s in the future: set the clock of its node"


def utc_now() -> datetime:
    """Return the present time, in UTC."""
    return datetime.now(UTC)
