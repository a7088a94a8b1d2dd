"""Atomic installs: a file or folder appears whole under its name, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster.locks import InUseError, exclusive

# Where in the cache something is installed or built: beside its target.
SCRATCH = (".*", "images/.*", "manifests/.*", "bin/.*", "bin/*/.*")


@contextmanager
def installing(target: Path) -> Iterator[Path]:
    """A scratch path beside `target`, renamed to it when the block ends well and removed when it does not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield scratch / target.name
        (scratch / target.name).replace(target)
    finally:
        shutil.rmtree(scratch)


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    """Write a small text file atomically, with its folder and its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.touch(mode=mode)
    scratch.write_text(text)
    scratch.replace(path)
    return path


def sweep(folder: Path) -> None:
    """Remove the scratch folders that killed installs and builds left.

    The caller sees to it that no install is under way; a build holds a lock on its folder.
    """
    for scratch in [found for pattern in SCRATCH for found in folder.glob(pattern)]:
        with suppress(InUseError), exclusive(scratch, wait=False):
            shutil.rmtree(scratch)
