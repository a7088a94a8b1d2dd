"""What has been done on a device, in a file: whoever reads it goes on where the last call ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.harness.outcomes import Outcomes
from gpu.harness.part import DONE, Status


@dataclass(frozen=True, slots=True)
class Record:
    """What became of a part, on which sources, and after how many seconds in all its calls.

    `result`: what it wrote, as JSON has it. `tests`: of a part that pytest runs.
    """

    status: Status
    reason: str
    seconds: float
    sources: str
    command: str
    result: Any = None
    tests: Outcomes | None = None

    @property
    def done(self) -> bool:
        """Whether it need not run again."""
        return self.status in DONE


@dataclass(slots=True)
class Ledger:
    """Records by the names of parts, and on what they ran."""

    run: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Record] = field(default_factory=dict)

    def write(self, *paths: Path) -> None:
        """Replace the files whole."""
        text = json.dumps({"run": self.run, "parts": {n: _plain(r) for n, r in self.parts.items()}}, indent=2) + "\n"
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.new")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)


def read(path: Path) -> Ledger:
    """What is there; an empty one where nothing is. Raises ValueError for a file that is no ledger."""
    if not path.is_file():
        return Ledger()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Ledger(found["run"], {name: _record(each) for name, each in found["parts"].items()})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no record of parts ({error!r}): remove it to begin anew") from error


def _plain(record: Record) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "status": str(record.status),
        "reason": record.reason,
        "seconds": round(record.seconds, 1),
        "sources": record.sources,
        "command": record.command,
    }
    if record.result is not None:
        plain["result"] = record.result
    if record.tests is not None:
        plain["tests"] = record.tests.record()
    return plain


def _record(plain: Mapping[str, Any]) -> Record:
    tests = plain.get("tests")
    return Record(
        Status(plain["status"]),
        plain["reason"],
        plain["seconds"],
        plain["sources"],
        plain["command"],
        plain.get("result"),
        None if tests is None else Outcomes.of(tests),
    )
