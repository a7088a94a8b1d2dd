"""Folders for models on disk: one writable cache and read-only folders, which are searched first."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from plimsoll_runtime.errors import SourceError


def cache_root() -> Path:
    """Return the writable cache folder: PLIMSOLL_CACHE, or ~/.cache/plimsoll."""
    return Path(os.environ.get("PLIMSOLL_CACHE") or "~/.cache/plimsoll").expanduser()


def read_only_roots() -> list[Path]:
    """Return the read-only folders of PLIMSOLL_MODEL_PATH (for example, filled when a container image is built)."""
    return [Path(p) for p in os.environ.get("PLIMSOLL_MODEL_PATH", "").split(os.pathsep) if p]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file `.NAME.lock` in the folder of `path`, creating the folder.

    Raises SourceError if the folder is not writable.
    """
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((path.parent / f".{path.name}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise SourceError(
                f"the cache folder {path.parent} is not writable ({error}); set PLIMSOLL_CACHE to a writable folder"
            ) from error
        yield
