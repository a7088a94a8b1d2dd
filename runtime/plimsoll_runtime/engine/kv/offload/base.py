"""Protocols of the tiers below the device's cache: blocks on disk, and copies to and from frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Done(NamedTuple):
    """A frame's read or write is over; if not `ok`, the frame (of a read) or the disk (of a write) holds nothing.

    `ns`: nanoseconds that it took. Of those in which several were read at once each counts for one of them alone, so
    that the sum is the time in which something was read.
    """

    frame: int
    ok: bool
    ns: int = 0


class TierStore(Protocol):
    """Moves blocks between frames of host memory and a disk, behind the engine's back.

    Every method but `wait` returns at once and none raises: what goes wrong comes out of `poll`. Each frame has one
    read or write under way at most. Writes and deletes are done in the order in which they were asked for.
    """

    @property
    def broken(self) -> bool:
        """Whether it has given up: everything that is asked of it fails."""

    def names(self) -> Sequence[bytes]:
        """What an earlier run has left, least recently used first."""

    def write(self, frame: int, name: bytes) -> None:
        """Keep a frame's contents under a name."""

    def read(self, frame: int, name: bytes) -> None:
        """Fill a frame with what is kept under a name."""

    def delete(self, name: bytes) -> None:
        """Keep nothing under this name any longer. Tried also when it has given up: nobody is to find it again."""

    def clear(self) -> None:
        """Keep nothing at all any longer, not even what nobody asked for. Tried also when it has given up."""

    def poll(self) -> Sequence[Done]:
        """The reads and writes that are over, each told once."""

    def wait(self, seconds: float) -> None:
        """Return once `poll` has something to tell, or after so many seconds."""


class FrameCopies(Protocol):
    """Those of a device that may still copy when a step is over. It copies in the order of the steps."""

    @property
    def steps_over(self) -> int:
        """Of how many steps with spills or restores all copies are over, since the start. Never waits."""
