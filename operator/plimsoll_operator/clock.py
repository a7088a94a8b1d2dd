"""The time of day, as the operator reads it where no test says otherwise."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The time of day."""
    return datetime.now(UTC)
