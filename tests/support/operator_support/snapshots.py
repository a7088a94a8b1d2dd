"""Snapshots of built objects. With PLIMSOLL_UPDATE_SNAPSHOTS=1 they are written instead of compared."""

from __future__ import annotations

import os
from pathlib import Path

import yaml
from operator_support.objects import Json

SNAPSHOTS = Path(__file__).parents[2] / "unit" / "operator" / "build" / "snapshots"
UPDATE = "PLIMSOLL_UPDATE_SNAPSHOTS"


def assert_snapshot(name: str, found: Json) -> None:
    """Compare an object with its snapshot."""
    path = SNAPSHOTS / f"{name}.yaml"
    text = yaml.safe_dump(found, sort_keys=False, width=120)
    if os.environ.get(UPDATE) == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"no snapshot {path.name}: run this test with {UPDATE}=1 and review the difference"
    assert text == path.read_text(), (
        f"{path.name} differs from the built object; if that is intended, run with {UPDATE}=1"
    )
