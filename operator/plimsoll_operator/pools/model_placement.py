"""Where a model with placement is, as its status tells it: plain records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.status.reasons import Reason


@dataclass(frozen=True, slots=True)
class Problem:
    """A condition's reason, and what to do. `keeps`: what hosts have of the model already may stay there."""

    reason: Reason
    message: str
    keeps: bool = True


class Where(StrEnum):
    """How a model is on a host, in the words of `status.placements`."""

    PLACING = "Placing"
    ASLEEP = "Asleep"
    FETCHING = "Fetching"
    WAKING = "Waking"
    RESIDENT = "Resident"
    DRAINING = "Draining"
    UNKNOWN = "Unknown"


OF_STATE = {
    "Fetching": Where.FETCHING,
    "OnDisk": Where.ASLEEP,
    "InHost": Where.ASLEEP,
    "Waking": Where.WAKING,
    "Resident": Where.RESIDENT,
    "Draining": Where.DRAINING,
}
HELD = frozenset({Where.ASLEEP, Where.WAKING, Where.RESIDENT})
"""A request to its host is answered: at once, or once the host has woken it."""
UNDER_WAY = frozenset({Where.PLACING, Where.FETCHING, Where.WAKING, Where.DRAINING, Where.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Copy:
    """A model on one host. `ready`: its pod takes requests. `since` in seconds since the epoch.

    `namespace`: the host's, where it is not the model's own.
    """

    host: str
    where: Where
    ready: bool
    bytes: int = 0
    since: float | None = None
    why: str = ""
    error: str = ""
    current: bool = True
    namespace: str = ""

    @property
    def place(self) -> str:
        """The host and how the model is there, in few words."""
        return f"{self.namespace}/{self.host} {self.where}" if self.namespace else f"{self.host} {self.where}"

    @property
    def is_there(self) -> bool:
        """Whether its host has it, or gets it. A fetch that has failed may fail again: until it is over nothing is
        there.
        """
        return self.where is not Where.PLACING and not (self.where is Where.FETCHING and bool(self.error))

    @property
    def answers(self) -> bool:
        """Whether a request is answered there: by what drains to sleep once it sleeps, by what drains to go never."""
        return self.ready and (self.where in HELD or (self.where is Where.DRAINING and self.current))


@dataclass(frozen=True, slots=True)
class ModelPlacement:
    """Everything that is known of a model in its pool. `problem`: why it cannot be placed as it should be, if so.

    `pool` is the pool's name, and its namespace's before it where that is not the model's own. `held`: what its first
    placement waits for, "" where it does not. `files`: the claim on which the pool keeps files and batches, with its
    namespace, "" for none. `refused`: which hosts' reports are refused and why, "" if none is.
    """

    pool: str
    copies: tuple[Copy, ...] = ()
    problem: Problem | None = None
    held: str = ""
    files: str = ""
    refused: str = ""

    @property
    def answering(self) -> int:
        """Hosts that answer for it."""
        return sum(copy.answers for copy in self.copies)

    @property
    def asleep(self) -> bool:
        """Whether it is somewhere, and awake nowhere."""
        return bool(self.copies) and all(copy.where is Where.ASLEEP for copy in self.copies)


def shown(model: ObjectKey, pool: ObjectKey) -> str:
    """The name of a model's pool as its conditions have it."""
    return pool.name if pool.namespace == model.namespace else str(pool)


@dataclass(frozen=True, slots=True)
class PlacementEvent:
    """A decision about a model that people hear of as an event."""

    reason: Reason
    why: str

    @property
    def warning(self) -> bool:
        """Whether somebody should look."""
        return self.reason is Reason.REFUSED
