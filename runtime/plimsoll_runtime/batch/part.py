"""A file of lines that grows. What was not made safe may be lost with its writer."""

from __future__ import annotations

from pathlib import Path

from plimsoll_runtime.batch.growing import GrowingFile
from plimsoll_runtime.errors import UsageError

PIECE = 2**17
"""Bytes that are written at once."""


class Part(GrowingFile):
    """An open file of lines."""

    def __init__(self, path: Path, size: int) -> None:
        """Open it, made where it is not there yet, and cut it to a size. Raises UsageError where it is shorter."""
        super().__init__(path)
        if self.size < size:
            self.close()
            raise UsageError(f"{path} has lost what was safe in it; begin anew with --restart")
        self._cut(size)

    def add(self, line: bytes) -> None:
        """Put a line behind the others."""
        self._rest += line
        self._rest += b"\n"
        if len(self._rest) >= PIECE:
            self.flush()
