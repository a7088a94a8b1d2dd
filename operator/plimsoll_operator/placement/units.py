"""Formats figures for reasons and refusals."""

from __future__ import annotations


def size(count: int) -> str:
    """Return bytes with three figures: 7.45 GiB."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(amount) < 1024:
            return f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB" if abs(amount) < 100 else f"{amount:.0f} GiB"


def span(seconds: float) -> str:
    """Return seconds with a unit that fits: 0.8 s, 12 min, 3.1 h."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 request, 2 requests."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
