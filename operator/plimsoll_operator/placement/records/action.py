"""The actions of a plan. Each has its reason as text for an event."""

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
    """What a move does first: place the new copy or, if memory is too small for both, unload the old one."""

    PLACE = "Place"
    UNLOAD = "Unload"


class _Action(Struct, frozen=True, tag=True):
    model: ObjectKey
    host: ObjectKey
    because: ActionCause
    why: str


class Place(_Action, frozen=True):
    """Put a model on a host that does not have it, at a level (PUT of the host API)."""

    level: Level


class Unload(_Action, frozen=True):
    """Drain a model, unload it and remove it from its host (DELETE of the host API)."""


class Sleep(_Action, frozen=True):
    """Put a model to sleep as an image in host memory or as files on disk."""

    level: Level


class Wake(_Action, frozen=True):
    """Wake a model that sleeps on the host."""


class Move(_Action, frozen=True):
    """Bring a model to `level` on `host` and unload it from `source`, which is the same host for a new revision.

    With First.PLACE, the source is unloaded after the copy on `host` has reached its level.
    """

    source: ObjectKey
    level: Level
    first: First


Action = Place | Unload | Sleep | Wake | Move
