"""Atomic installs: a file or folder appears whole under its name, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    """Remove the scratch folders that interrupted installs left. The caller sees to it that none is under way."""
    for scratch in [*folder.glob(".*"), *folder.glob("*/.*"), *folder.glob("bin/*/.*")]:
        shutil.rmtree(scratch)
