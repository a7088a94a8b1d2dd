"""File locks for exclusive work. The kernel releases the locks of ended processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import ClusterError


class InUseError(ClusterError):
    """Another process holds the lock."""


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock on a file or folder. Without `wait`, raises InUseError if another process holds it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        os.close(descriptor)
        raise InUseError(f"{path} is in use by another process") from error
    try:
        yield
    finally:
        os.close(descriptor)
