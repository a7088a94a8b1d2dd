"""One name by which a model is asked: who is here by it, and whether a replica answers to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(slots=True)
class Lane:
    """`users` are here, of whom `running` are under way. `closed_since`: when no replica answered to the name any more,
    in the loop's time, though one will; None while one answers, or none will.
    """

    name: str
    users: int = 0
    running: int = 0
    closed_since: float | None = None

    def note(self, *, closed: bool) -> None:
        """Whether it is closed now."""
        if not closed:
            self.closed_since = None
        elif self.closed_since is None:
            self.closed_since = asyncio.get_running_loop().time()

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible."""
        assert 0 <= self.running <= self.users, f"{self.running} of {self.users} are under way"
        assert self.users, "a lane in which nobody is is kept"
