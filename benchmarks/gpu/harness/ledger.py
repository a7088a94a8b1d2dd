"""The state of checks on a device, in a file from which the next call resumes."""

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
    """Status of a part, digests of the sources it ran on, and its seconds in all calls. `result`: its JSON output.
    `tests`: results of its tests, if pytest runs it.
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
        """Whether the part need not run again."""
        return self.status in DONE


@dataclass(slots=True)
class Ledger:
    """Records by part, and the environment in which they ran."""

    run: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Record] = field(default_factory=dict)

    def write(self, *paths: Path) -> None:
        """Write the ledger to each of the files, atomically."""
        text = json.dumps({"run": self.run, "parts": {n: _plain(r) for n, r in self.parts.items()}}, indent=2) + "\n"
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.new")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)


def read(path: Path) -> Ledger:
    """Return the ledger, or an empty one if the file is missing. Raises ValueError for a file that is not a ledger."""
    if not path.is_file():
        return Ledger()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Ledger(found["run"], {name: _record(each) for name, each in found["parts"].items()})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a record of parts ({error!r}); remove it to start over") from error


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
