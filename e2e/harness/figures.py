"""Figures measured by scenarios, one JSON file per test."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Figures = dict[str, Any]


def save(folder: Path, test: str, figures: Figures) -> None:
    """Write a test's figures atomically, unless there are none."""
    if figures:
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\W+", "-", test)
        unfinished = folder / f"{name}.unfinished"
        unfinished.write_text(json.dumps({"test": test, "figures": figures}))
        unfinished.rename(folder / f"{name}.json")


def told(figures: Figures) -> str:
    """Return figures for an error message, one per line."""
    return json.dumps(figures, indent=1)


def judged(seconds: Sequence[float], goal: float, percent: int = 95) -> Figures:
    """Return figures of measured times: all of them, percentiles, and whether the one of `percent` % meets its goal."""
    ordered = sorted(seconds)
    reached = percentile(ordered, percent)
    return {
        "each": list(seconds),
        "p50": percentile(ordered, 50),
        f"p{percent}": reached,
        "max": percentile(ordered, 100),
        f"goal_p{percent}": goal,
        "goal": "met" if reached is not None and reached <= goal else "missed",
    }


def percentile(ordered: list[float], percent: int) -> float | None:
    """Return the smallest value that is at least as large as `percent` % of the values, or None without values."""
    return round(ordered[max(0, -(-len(ordered) * percent // 100) - 1)], 3) if ordered else None


def goals(found: dict[str, Figures]) -> list[str]:
    """Return a line for each goal in the figures: a record with a `goal` that is "met" or "missed"."""
    return [f"{test.partition('::')[2]}: {line}" for test, figures in found.items() for line in _goals("", figures)]


def _goals(where: str, figures: Figures) -> list[str]:
    inner = [line for name, value in figures.items() if isinstance(value, dict) for line in _goals(name, value)]
    if "goal" not in figures:
        return inner
    values = ", ".join(f"{k} {v}" for k, v in figures.items() if isinstance(v, int | float))
    return [f"goal {figures['goal']}: {where} {values}".replace("  ", " "), *inner]


def load(folder: Path) -> dict[str, Figures]:
    """Return all saved figures: test, such as `test_pool.py::test_name` -> its figures."""
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return {entry["test"]: entry["figures"] for entry in found}
