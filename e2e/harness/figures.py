"""Figures that a scenario measures, one JSON file a test."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

Figures = dict[str, Any]


def save(folder: Path, test: str, figures: Figures) -> None:
    """Write what a test measured; nothing where it measured nothing."""
    if figures:
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\W+", "-", test)
        (folder / f"{name}.json").write_text(json.dumps({"test": test, "figures": figures}))


def told(figures: Figures) -> str:
    """The same for a failure's message: whole, a line for each."""
    return json.dumps(figures, indent=1)


def load(folder: Path) -> dict[str, Figures]:
    """Everything that was written there, by test."""
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return {entry["test"]: entry["figures"] for entry in found}
