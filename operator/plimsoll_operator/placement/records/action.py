"""What a plan tells hosts to do. Each action says why, in words for an event."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.level import Level


class ActionCause(StrEnum):
    """The kind of reason, for events and metrics."""

    MISSING = "Missing"
    DEMAND = "Demand"
    KEPT_AWAKE = "KeptAwake"
    EVICTED = "Evicted"
    PRESSURE = "Pressure"
    SCALED = "Scaled"
    REMOVED = "Removed"
    REVISION = "Revision"
    DRAINING = "Draining"
    DEFRAGMENTED = "Defragmented"
    BALANCED = "Balanced"


class First(StrEnum):
    """What a move does first: the new placement, or, where memory has no room for both, the old one's unloading."""

    PLACE = "Place"
    UNLOAD = "Unload"


class Place(Struct, frozen=True, tag=True):
    """Put a model on a host that does not have it, and bring it to a level: the host API's PUT."""

    model: ObjectKey
    host: ObjectKey
    level: Level
    because: ActionCause
    why: str
    pod: int = 0


class Unload(Struct, frozen=True, tag=True):
    """Drain it, unload it and forget it: the host API's DELETE."""

    model: ObjectKey
    host: ObjectKey
    because: ActionCause
    why: str
    pod: int = 0


class Sleep(Struct, frozen=True, tag=True):
    """Put it to sleep as an image in host memory or as files on disk."""

    model: ObjectKey
    host: ObjectKey
    level: Level
    because: ActionCause
    why: str
    pod: int = 0


class Wake(Struct, frozen=True, tag=True):
    """Bring a model that sleeps on the host to Resident."""

    model: ObjectKey
    host: ObjectKey
    because: ActionCause
    why: str
    pod: int = 0


class Move(Struct, frozen=True, tag=True):
    """Bring a model to `level` on `host` and unload it from `source`, which may be the same host for a new revision.

    With First.PLACE the source is unloaded once the copy on `host` has reached its level.
    """

    model: ObjectKey
    source: ObjectKey
    host: ObjectKey
    level: Level
    first: First
    because: ActionCause
    why: str
    pod: int = 0


Action = Place | Unload | Sleep | Wake | Move
