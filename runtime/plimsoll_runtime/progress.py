"""How far a load is, told while it goes on."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Called with a stage's name and how far it is, from 0 to 1."""


def silent(stage: str, fraction: float) -> None:
    """For whoever shows no progress."""
