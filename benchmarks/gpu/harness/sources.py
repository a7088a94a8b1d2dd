"""Where the sources lie, without an installation, and what names their state."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SEARCHED = ("operator", "runtime", "kernels", "benchmarks", "e2e", "tests/support")
COMPUTED_BY = ("runtime", "kernels")


def search_path(*first: Path) -> str:
    """PYTHONPATH for a part: folders of packages that were missing, the project's own, and what was there before."""
    own = [str(ROOT / name) for name in SEARCHED]
    before = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([*map(str, first), *own, *([before] if before else [])])


def digest() -> str:
    """Twelve digits that change with any file of the runtime or the kernels."""
    found = hashlib.sha256()
    for root in COMPUTED_BY:
        for path in sorted((ROOT / root).rglob("*.py")):
            found.update(str(path.relative_to(ROOT)).encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:12]
