"""Results of the tests of a part, written as they end, so that an interrupted run keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Outcomes:
    """Names of tests that passed, that failed, and that were skipped with the reason."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, outcome: str, reason: str = "") -> None:
        """Record a test's result. A failure removes earlier results of the test; a pass or skip removes an earlier
        failure.
        """
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
        """Add the results of a run: one line per test, of which the last may be truncated."""
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
        """Return the results for a file."""
        return {
            "passed": sorted(self.passed),
            "failed": sorted(self.failed),
            "skipped": dict(sorted(self.skipped.items())),
        }

    @classmethod
    def of(cls, record: dict[str, Any]) -> Outcomes:
        """Read results from a file's content."""
        return cls(set(record["passed"]), set(record["failed"]), dict(record["skipped"]))


def line(name: str, outcome: str, reason: str) -> str:
    """Return the result of one test as a line for `Outcomes.read`."""
    return json.dumps({"test": name, "outcome": outcome, "reason": reason}) + "\n"


def write_done(path: Path, names: Iterable[str]) -> None:
    """Write the tests that need not run again, one per line."""
    path.write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")
