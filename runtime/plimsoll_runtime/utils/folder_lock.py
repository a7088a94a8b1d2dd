"""Folders owned by the holder of a lock on a file in them, which is one process at a time.

The kernel releases a lock when its holder ends, so a folder whose lock is free has no owner. Between opening a file and
locking it, other processes can delete and recreate it: then the lock is on a file that no other process uses. So a lock
counts only if its file is still the one in the folder. A folder's lock file is deleted last, so that an interrupted
deletion can be finished.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path


def is_ours(path: Path) -> bool:
    """Return whether the path is a folder (not a link) of this process's user."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def lock(folder: Path, name: str, *, make: bool) -> int | None:
    """Lock a folder by the file `name` in it. Return the file's descriptor, which holds the lock until it is closed, or
    None if another process holds it.

    Raises FileNotFoundError if the folder or, unless `make`, the file is missing. A file that is a link is refused
    (OSError).
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0)
    while True:
        descriptor = os.open(folder / name, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_there(folder / name, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def remove(folder: Path, name: str) -> None:
    """Delete a folder whose lock the caller holds, the lock file last. Raises OSError; the remaining files are then
    still locked.

    A process that takes the folder after the lock file is deleted and before the folder is gets it empty.
    """
    for entry in entries(folder):
        if entry.name == name:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink(missing_ok=True)
    (folder / name).unlink(missing_ok=True)
    while True:
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            left = {entry.name for entry in entries(folder)}
            if name in left:
                return
            if left or error.errno != errno.ENOTEMPTY:
                raise
        # Another process took the folder and has released it: it may be empty again.


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, or [] if it does not exist."""
    with suppress(FileNotFoundError):
        return list(os.scandir(folder))
    return []


def _is_there(path: Path, descriptor: int) -> bool:
    """Return whether the path still leads to the open file."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)
