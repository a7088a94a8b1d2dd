"""The loss of a device's state, and its recovery, as the engine core sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from plimsoll_runtime.engine.protocol.messages import GroupStats


class GenerationLostError(Exception):
    """All processes that computed steps have been ended: the steps in progress and every KV block are lost."""


class Recovery(Protocol):
    """Replaces lost processes in the background."""

    @property
    def descriptors(self) -> Sequence[int]:
        """Descriptors of which one becomes readable if a process ends while no step runs."""

    @property
    def stats(self) -> GroupStats:
        """The present generation, and the losses so far."""

    def drain(self) -> None:
        """Keep the members of the group, also those that leave, until the end. Any thread may call this."""

    def check(self) -> None:
        """Raise GenerationLostError if a process has ended."""

    def wait(self, seconds: float) -> bool:
        """Wait until steps can run again, for at most `seconds`; return whether they can."""
