"""Atomic installation: a file or folder appears complete under its name, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster.locks import InUseError, exclusive

# Names of scratch folders in the cache, each next to its target.
SCRATCH = (".*", "images/.*", "manifests/.*", "bin/.*", "bin/*/.*")


@contextmanager
def installing(target: Path) -> Iterator[Path]:
    """Yield a scratch path next to `target`. It is renamed to `target` if the block succeeds, else removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield scratch / target.name
        (scratch / target.name).replace(target)
    finally:
        shutil.rmtree(scratch)


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    """Write a small text file atomically, with its folder and mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.touch(mode=mode)
    scratch.write_text(text)
    scratch.replace(path)
    return path


def sweep(folder: Path) -> None:
    """Remove scratch folders left by killed installations and builds. The caller ensures that no installation is
    running; a build holds a lock on its folder.
    """
    for scratch in [found for pattern in SCRATCH for found in folder.glob(pattern)]:
        with suppress(InUseError), exclusive(scratch, wait=False):
            shutil.rmtree(scratch)
