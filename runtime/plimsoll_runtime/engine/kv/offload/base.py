"""Protocols of the tiers below the device's cache: blocks on disk, and copies to and from frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Done(NamedTuple):
    """The result of reading or writing a frame. If not `ok`, the target (frame or disk) has no valid contents.

    `ns`: duration in nanoseconds. The time of overlapping reads is counted only once, so the sum is the time in which
    the disk was reading.
    """

    frame: int
    ok: bool
    ns: int = 0


class TierStore(Protocol):
    """Moves blocks between frames of host memory and a disk, in background threads.

    Every method except `wait` returns immediately, and none raises: `poll` reports failures. Each frame has at most one
    read or write in progress. Writes and deletes run in the order of the calls.
    """

    @property
    def broken(self) -> bool:
        """Whether the store has stopped working: every further read and write fails."""

    def names(self) -> Sequence[bytes]:
        """Return the names of blocks left by an earlier run, least recently used first."""

    def write(self, frame: int, name: bytes) -> None:
        """Write a frame's contents to the disk under a name."""

    def read(self, frame: int, name: bytes) -> None:
        """Fill a frame with the contents stored under a name."""

    def delete(self, name: bytes) -> None:
        """Delete the block stored under a name. Also tried if the store is broken, so that a later run does not find
        it.
        """

    def clear(self) -> None:
        """Delete all blocks from the disk, also those that no index has. Also tried if the store is broken."""

    def poll(self) -> Sequence[Done]:
        """Return the reads and writes that have ended since the last call."""

    def wait(self, seconds: float) -> None:
        """Return when `poll` has results, or after `seconds`."""


class FrameCopies(Protocol):
    """Progress of copies on a device that may still copy after a step's result is known. It copies in step order."""

    @property
    def steps_over(self) -> int:
        """Number of steps with spills or restores whose copies have ended, since the start. Never waits."""
