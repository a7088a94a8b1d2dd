"""The placement of a model in a pool, for its status: plain records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.status.reasons import Reason


@dataclass(frozen=True, slots=True)
class Problem:
    """A condition's reason and message. `keeps`: copies that hosts already have may stay."""

    reason: Reason
    message: str
    keeps: bool = True


class Where(StrEnum):
    """The state of a model on a host in `status.placements`."""

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
"""States in which the host serves a request, if necessary after waking the model."""
UNDER_WAY = frozenset({Where.PLACING, Where.FETCHING, Where.WAKING, Where.DRAINING, Where.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Copy:
    """A model on one host, as its status shows it.

    `ready`: the host's pod takes requests. `bytes`: of device memory, or of the image of a sleeping model. `since`:
    when its state began, in seconds since the epoch. `current`: the last plan keeps it on the host. `namespace`: the
    host's, if it differs from the model's.
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
        """The host and the state, as short text."""
        return f"{self.namespace}/{self.host} {self.where}" if self.namespace else f"{self.host} {self.where}"

    @property
    def is_there(self) -> bool:
        """Whether its host has it, or is getting it. A copy whose fetch has failed does not count until a fetch
        succeeds.
        """
        return self.where is not Where.PLACING and not (self.where is Where.FETCHING and bool(self.error))

    @property
    def answers(self) -> bool:
        """Whether the host serves requests for it. A copy that drains to sleep does, one that drains to be unloaded
        does not.
        """
        return self.ready and (self.where in HELD or (self.where is Where.DRAINING and self.current))


@dataclass(frozen=True, slots=True)
class ModelPlacement:
    """The placement of a model in its pool. `problem`: why it cannot be placed as wanted, if so.

    `pool` is the pool's name, with its namespace if that differs from the model's. `held`: what its first placement
    waits for, "" for nothing. `files`: the pool's claim for files and batch jobs, with its namespace, "" for none.
    `refused`: which hosts' reports are rejected and why, "" if none is.
    """

    pool: str
    copies: tuple[Copy, ...] = ()
    problem: Problem | None = None
    held: str = ""
    files: str = ""
    refused: str = ""

    @property
    def answering(self) -> int:
        """The number of hosts that serve it."""
        return sum(copy.answers for copy in self.copies)

    @property
    def asleep(self) -> bool:
        """Whether it has copies, and all of them are Asleep."""
        return bool(self.copies) and all(copy.where is Where.ASLEEP for copy in self.copies)


def shown(model: ObjectKey, pool: ObjectKey) -> str:
    """Return the pool's name for a model's conditions, with its namespace if that differs from the model's."""
    return pool.name if pool.namespace == model.namespace else str(pool)


@dataclass(frozen=True, slots=True)
class PlacementEvent:
    """A decision of the planner or of a host about a model, which becomes a Kubernetes event of the model."""

    reason: Reason
    why: str

    @property
    def warning(self) -> bool:
        """Whether the event is a warning."""
        return self.reason is Reason.REFUSED
