"""Where responses are kept: a shelf with a bound on their number, their bytes and their age.

What was used least recently goes first, of those who have more than an even share (see `shares`). A response is used
when it is kept, and when a conversation goes on from it or from what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a shelf may hold. `seconds`: how long after its last use a response is there. `share`: how much of the whole
    one owner may have.
    """

    count: int = 10_000
    bytes: int = 64 * 2**20
    seconds: float = 30 * 86_400
    share: float = 1.0

    @property
    def count_of_one(self) -> int:
        """Responses that one owner may have."""
        return max(1, int(self.count * self.share))

    @property
    def bytes_of_one(self) -> int:
        """Bytes that they may have."""
        return int(self.bytes * self.share)


USUAL = Bounds()
OVERHEAD = 512
"""Bytes that a response takes beside its texts."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One response. `response` is its JSON as it is told, `input` the JSON of its own input's items, `previous` the id
    of the one that it goes on from. `events` are what its stream told, packed, where it can be followed again.
    `running`: it had not ended when it was kept.
    """

    id: str
    owner: str
    previous: str | None
    response: bytes
    input: bytes
    events: bytes = b""
    running: bool = False

    @property
    def size(self) -> int:
        """Bytes that it counts for."""
        return OVERHEAD + len(self.response) + len(self.input) + len(self.events)


class Shelf(Protocol):
    """Used by one thread at a time."""

    def put(self, kept: Kept) -> bool:
        """Keep it, in place of what has its id. False where there is no room for it beside what others have a right to;
        then it is not there, and nothing else went for it.
        """

    def get(self, response: str, owner: str) -> Kept | None:
        """The one of that id, if it is the owner's."""

    def use(self, responses: Sequence[str]) -> None:
        """They were used now, the last of them last. Those that are not there do not count."""

    def delete(self, response: str, owner: str) -> bool:
        """Forget it, if it is the owner's; whether it was there."""

    def close(self) -> None:
        """Nothing is asked of it any more."""

    def check_integrity(self) -> None:
        """Raises AssertionError where its records contradict each other, or a bound is not kept."""


Clock = Callable[[], float]
"""Seconds since the epoch."""
