"""The goals of the simulation, judged by its figures. A missed goal is reported as missed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BOUND, BELOW, PLAN_SECONDS = 1.15, 0.20, 0.1
INFORMED = 1.15
"""Multiple of the cost of the same planner with known request rates and without minimum residency."""


def judge(traces: list[dict[str, Any]], planning: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return every goal with its figure and whether it is met."""
    rows = []
    for trace in traces:
        paid = {name: figures["seconds"] for name, figures in trace["policies"].items()}
        ratio = paid["plimsoll"] / trace["bound"]
        rows.append(_row(trace["name"], f"at most {BOUND} times the bound", f"{ratio:.2f}", ratio <= BOUND))
        ratio = paid["plimsoll"] / paid["informed"]
        rows.append(_row(trace["name"], f"at most {INFORMED} times the informed", f"{ratio:.2f}", ratio <= INFORMED))
        for other in ("lru", "modelmesh"):
            below = 1 - paid["plimsoll"] / paid[other]
            met = paid["plimsoll"] <= (1 - BELOW) * paid[other]
            rows.append(_row(trace["name"], f"20 % below {other}", f"{below:.0%}", met))
    for what, seconds in planning.items():
        met = seconds < PLAN_SECONDS
        rows.append(_row("planning", f"{what}: below 100 ms", f"{1000 * seconds:.0f} ms", met))
    return rows


def _row(work: str, goal: str, figure: str, met: bool) -> dict[str, Any]:
    return {"work": work, "goal": goal, "figure": figure, "met": met}
