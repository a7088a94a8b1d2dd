"""Daemons as records in files. A machine's supervisor reads them and keeps the daemons running."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cluster.files import write


@dataclass(frozen=True)
class Daemon:
    """`argv[0]` is an absolute path; `env` is added to the machine's environment."""

    name: str
    argv: tuple[str, ...]
    log: str
    env: dict[str, str] = field(default_factory=dict)


def flags(**values: str) -> tuple[str, ...]:
    """Return `("--data-dir=x",)` for `flags(data_dir="x")`."""
    return tuple(f"--{name.replace('_', '-')}={value}" for name, value in values.items())


def save(folder: Path, daemons: Sequence[Daemon]) -> None:
    """Add daemons to the machine's list, one file each."""
    for daemon in daemons:
        write(folder / f"{daemon.name}.json", json.dumps(asdict(daemon), indent=1))


def load(folder: Path) -> dict[str, Daemon]:
    """Return the daemons on the machine's list, by name."""
    found = (json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))
    return {entry["name"]: Daemon(**{**entry, "argv": tuple(entry["argv"])}) for entry in found}
