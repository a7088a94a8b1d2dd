"""Who may do what at the same time, by file locks: the kernel takes them back from whoever dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import ClusterError


@contextmanager
def exclusive(path: Path, otherwise: str | None = None) -> Iterator[None]:
    """Hold a lock on a file or folder. Waits for it, or raises ClusterError(otherwise) if that is given."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if otherwise else 0))
    except BlockingIOError as error:
        os.close(descriptor)
        raise ClusterError(str(otherwise)) from error
    try:
        yield
    finally:
        os.close(descriptor)
