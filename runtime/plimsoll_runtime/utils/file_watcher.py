"""Reads a file again when it changes, such as credentials that are replaced while a server runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from plimsoll_runtime.errors import PlimsollError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Stamp = tuple[int, int, int]


class WatchedFile(Generic[T]):
    """The value of a file. If the file becomes unreadable or invalid, the last value stays in force.

    Detects replaced files and files written in place. Each error is logged once.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[Path], T],
        *,
        every: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the file. Raises the errors of `read`: OSError, ValueError or PlimsollError.

        The file is checked at most once in `every` seconds.
        """
        self._path = path
        self._reader = read
        self._every = every
        self._clock = clock
        self._looked = clock()
        self._told = ""
        self._stamp: Stamp | None = None
        with suppress(OSError):  # `read` reports a missing file
            self._stamp = _stamp(path)
        self._value = read(path)

    def value(self) -> T:
        """Return the value of the current file."""
        now = self._clock()
        if now - self._looked >= self._every:
            self._looked = now
            self._look()
        return self._value

    def _look(self) -> None:
        try:
            stamp = _stamp(self._path)
            if stamp != self._stamp:
                self._value = self._reader(self._path)
                self._stamp = stamp
            self._told = ""
        except (OSError, ValueError, PlimsollError) as error:
            if str(error) != self._told:
                logger.error(
                    "cannot read the changed file %s, the previous content stays in force: %s", self._path, error
                )
            self._told = str(error)


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size
