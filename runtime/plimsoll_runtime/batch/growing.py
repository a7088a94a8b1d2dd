"""A file that is written at its end: what is added waits in memory until it is flushed, and is safe once synced."""

from __future__ import annotations

import os
from pathlib import Path


class GrowingFile:
    """An open file. Not for several threads."""

    def __init__(self, path: Path) -> None:
        """Open it, empty where it is not there yet."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._rest = bytearray()
        self._written = os.fstat(self._fd).st_size

    @property
    def size(self) -> int:
        """Bytes, those that are still to be written too."""
        return self._written + len(self._rest)

    def flush(self) -> None:
        """What was added outlives the process from here on."""
        if self._rest:
            write_at(self._fd, self._rest, self._written)
            self._written += len(self._rest)
            self._rest.clear()

    def sync(self) -> None:
        """What was added outlives the machine's end from here on."""
        self.flush()
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file, and of what was not written."""
        os.close(self._fd)

    def _cut(self, size: int) -> None:
        """Drop what was written beyond a size."""
        os.ftruncate(self._fd, size)
        self._written = size


def write_at(descriptor: int, data: bytes | bytearray, offset: int) -> None:
    """All of it, however little the system takes at a time."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], offset + done)
