"""Where models lie on disk: a cache of ours that is written to, and read-only ones that are searched first."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from plimsoll_runtime.errors import SourceError


def cache_root() -> Path:
    """The folder that is written to: PLIMSOLL_CACHE, else ~/.cache/plimsoll."""
    return Path(os.environ.get("PLIMSOLL_CACHE") or "~/.cache/plimsoll").expanduser()


def read_only_roots() -> list[Path]:
    """Folders of PLIMSOLL_MODEL_PATH, filled beforehand (in an image, say)."""
    return [Path(p) for p in os.environ.get("PLIMSOLL_MODEL_PATH", "").split(os.pathsep) if p]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, a file beside `path`, whose folder is made. Raises SourceError when it cannot."""
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((path.parent / f".{path.name}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise SourceError(f"the cache {path.parent} cannot be written to ({error}); set PLIMSOLL_CACHE") from error
        yield
