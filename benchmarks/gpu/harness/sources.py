"""Finds the sources without an installation, and computes their digest."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SEARCHED = ("operator", "runtime", "kernels", "benchmarks", "e2e", "tests/support")
COMPUTED_BY = ("runtime", "kernels")


def search_path(*first: Path) -> str:
    """Return PYTHONPATH for a part: folders of installed missing packages, the project's own, and the previous
    value.
    """
    own = [str(ROOT / name) for name in SEARCHED]
    before = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([*map(str, first), *own, *([before] if before else [])])


def digest() -> str:
    """Return twelve hexadecimal digits that change with any Python file of the runtime or the kernels."""
    found = hashlib.sha256()
    for root in COMPUTED_BY:
        for path in sorted((ROOT / root).rglob("*.py")):
            found.update(str(path.relative_to(ROOT)).encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:12]
