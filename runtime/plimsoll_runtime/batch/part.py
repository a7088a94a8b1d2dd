"""A file that is written at its end, in pieces. What was not made safe may be lost with its writer."""

from __future__ import annotations

import os
from pathlib import Path

from plimsoll_runtime.errors import UsageError

PIECE = 2**17


class Part:
    """An open file of lines."""

    def __init__(self, path: Path, size: int) -> None:
        """Open it, made where it is not there yet, and cut it to a size. Raises UsageError where it is shorter."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._rest = bytearray()
        self._written = size
        if os.fstat(self._fd).st_size < size:
            self.close()
            raise UsageError(f"{path} has lost what was safe in it; begin anew with --restart")
        os.ftruncate(self._fd, size)

    @property
    def size(self) -> int:
        """Bytes that were added so far."""
        return self._written + len(self._rest)

    def add(self, line: bytes) -> None:
        """Write a line behind the others."""
        self._rest += line
        self._rest += b"\n"
        if len(self._rest) >= PIECE:
            self._flush()

    def sync(self) -> None:
        """What was added outlives the process and the machine's end from here on."""
        self._flush()
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file, and of what was not written yet."""
        os.close(self._fd)

    def _flush(self) -> None:
        write_at(self._fd, self._rest, self._written)
        self._written += len(self._rest)
        self._rest.clear()


def write_at(descriptor: int, data: bytes | bytearray, offset: int) -> None:
    """All of it, however little the system takes at a time."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], offset + done)
