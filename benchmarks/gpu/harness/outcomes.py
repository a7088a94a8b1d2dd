"""What became of the tests of a part: written as they end, so that a run that is cut off has not lost them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Outcomes:
    """Tests by name: those that passed, those that failed, and why others were skipped. Each is in one of them."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, outcome: str, reason: str = "") -> None:
        """The last outcome of a test counts, but one that failed in any phase has failed."""
        if outcome == "failed":
            self.passed.discard(name)
            self.skipped.pop(name, None)
            self.failed.add(name)
        elif outcome == "skipped":
            self.failed.discard(name)
            self.skipped[name] = reason
        else:
            self.failed.discard(name)
            self.passed.add(name)

    def read(self, path: Path) -> None:
        """Add what a run has written: a line a test, of which the last may be cut off."""
        if not path.is_file():
            return
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            self.add(entry["test"], entry["outcome"], entry["reason"])

    def __str__(self) -> str:
        return f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"

    def record(self) -> dict[str, Any]:
        """For a file."""
        return {
            "passed": sorted(self.passed),
            "failed": sorted(self.failed),
            "skipped": dict(sorted(self.skipped.items())),
        }

    @classmethod
    def of(cls, record: dict[str, Any]) -> Outcomes:
        """From a file."""
        return cls(set(record["passed"]), set(record["failed"]), dict(record["skipped"]))


def line(name: str, outcome: str, reason: str) -> str:
    """What is written of one test."""
    return json.dumps({"test": name, "outcome": outcome, "reason": reason}) + "\n"


def write_done(path: Path, names: Iterable[str]) -> None:
    """Tests that need not run again, a line each."""
    path.write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")
