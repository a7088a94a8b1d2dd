"""What a simulated run was like, as a table of text."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_operator.simulation.pool import Outcome


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many per cent do not exceed; 0 of nothing."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * share // 100) - 1)] if ordered else 0.0


def table(outcome: Outcome) -> str:
    """Two columns: what, and how much of it."""
    waits = outcome.waits
    rows = [
        ("requests served", f"{outcome.served} of {outcome.requests}"),
        ("seconds of loading", f"{outcome.seconds:.1f}"),
        ("loads from files", str(outcome.loads)),
        ("wakes from images", str(outcome.wakes)),
        ("moves", str(outcome.moves)),
        (
            "waits, p50 / p99 / most",
            f"{percentile(waits, 50):.1f} / {percentile(waits, 99):.1f} / {max(waits, default=0):.1f} s",
        ),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {figure}" for name, figure in rows)
