"""Folders that belong to whoever holds the lock of one file in them: taken by one process at a time, however it ends.

The kernel gives a lock back when its holder is gone, so a folder whose lock can be had belongs to nobody. Between
opening a file and locking it others can delete it, and make it anew: then the lock holds something that nobody else
looks at. So a lock counts only if its file is still the one in the folder; and whoever deletes a folder deletes that
file last, so that there is always one lock to be had for what is left, and a deletion cut short can be finished.
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
    """Whether it is a folder, and no link to one, of this process's user."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def lock(folder: Path, name: str, *, make: bool) -> int | None:
    """An open file that holds the lock of a folder until it is closed; None when somebody else holds it.

    Raises FileNotFoundError where the folder is not there or, unless it may be made, the file. A file that is a link
    is refused (OSError).
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
    """Delete a folder whose lock the caller holds, the lock last. Raises OSError; what then is left is still locked.

    Whoever takes the folder after its lock is gone and before it is gone itself has it, empty.
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
        # Whoever took it meanwhile has given it up again: it may be empty now.


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing, where somebody has deleted it."""
    with suppress(FileNotFoundError):
        return list(os.scandir(folder))
    return []


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether the path still leads to the open file."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)
