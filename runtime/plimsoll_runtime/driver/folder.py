"""The folder of an engine's sockets: private to this user, locked while its owner lives, removed when it is gone.

A process that is killed removes nothing. So whoever makes such a folder removes the ones that are left of others: a
folder whose lock can be had belongs to nobody any more, for the kernel gives locks back however a process ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from pathlib import Path

from plimsoll_runtime.utils import folder_lock

logger = logging.getLogger(__name__)

PREFIX = "plimsoll-"
OWNER = "owner"
PATH_LIMIT = 100
"""Longest path of a Unix socket that every kernel takes, less the end that ZeroMQ may add."""


class SocketFolder:
    """A folder of one's own for sockets, with a path short enough for them; stale ones beside it are gone."""

    def __init__(self, longest_name: str) -> None:
        parent = tempfile.gettempdir()
        if len(f"{parent}/{PREFIX}12345678/{longest_name}") > PATH_LIMIT:
            parent = "/tmp"
        remove_stale(Path(parent))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            self._lock = _lock_own(self.path)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Remove it and what is in it."""
        folder_lock.remove(self.path, OWNER)
        os.close(self._lock)


def remove_stale(parent: Path) -> None:
    """Remove what is left of processes that were killed. What is not certainly such a folder of ours stays."""
    for folder in parent.glob(f"{PREFIX}*"):
        held = _lock_stale(folder)
        if held is None:
            continue
        try:
            folder_lock.remove(folder, OWNER)
            logger.info("removed %s, which was left by a process that was killed", folder)
        except OSError as error:
            logger.warning("%s is left of a process that was killed and cannot be removed: %s", folder, error)
        finally:
            os.close(held)


def _lock_own(folder: Path) -> int:
    """The descriptor of a lock that is held until it is closed. It gets its name locked: nobody sees it otherwise."""
    unnamed = folder / f"{OWNER}.new"
    descriptor = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        unnamed.rename(folder / OWNER)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock_stale(folder: Path) -> int | None:
    """The lock of a folder of this user, made as above, whose owner is gone; of any other folder none."""
    try:
        return folder_lock.lock(folder, OWNER, make=False) if folder_lock.is_ours(folder) else None
    except OSError:
        # Not marked yet, not by us, or gone: another process that starts was faster.
        return None
