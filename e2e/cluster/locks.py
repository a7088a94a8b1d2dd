"""Who may do what at the same time, by file locks: the kernel takes them back from whoever dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import ClusterError


class InUseError(ClusterError):
    """Somebody else holds the lock."""


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock on a file or folder. Waits for it; without `wait`, raises InUseError where it is held already."""
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
