"""The result of planning: actions, the placements after them, and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.action import Action
from plimsoll_operator.placement.records.level import Level


class Placement(Struct, frozen=True):
    """A copy after the plan: its model, host and level, and the reason of its last change."""

    model: ObjectKey
    host: ObjectKey
    level: Level
    why: str


class Refused(StrEnum):
    """Why a model is not placed or awake as wanted. The first five reasons last until a spec or the pool changes; the
    others pass by themselves.
    """

    NO_HOSTS = "NoHosts"
    NO_DEVICE = "NoDevice"
    TOO_LARGE = "TooLarge"
    PINNED_BEYOND_LINE = "PinnedBeyondLine"
    GROUPS = "Groups"
    NO_ROOM = "NoRoom"
    WAITS_FOR_TURN = "WaitsForTurn"
    WAITS_FOR_ROOM = "WaitsForRoom"
    WAITS_FOR_HOST = "WaitsForHost"
    FAILED_LATELY = "FailedLately"


class Refusal(Struct, frozen=True):
    """A model that the plan does not place or wake as wanted. `numbers` has the figures of `message`: bytes, seconds or
    counts.
    """

    model: ObjectKey
    reason: Refused
    message: str
    numbers: Mapping[str, float]


class Plan(Struct, frozen=True):
    """Actions in order.

    On each host, an action starts after those before it there have ended. The rest of a plan may be dropped at any
    time: the next plan, from newer reports, contains what is still wanted. `wait`: seconds after which to plan again
    even if no report changes. `truncated`: limits on moves left actions to the next plan.
    """

    actions: tuple[Action, ...]
    placements: tuple[Placement, ...]
    refusals: tuple[Refusal, ...] = ()
    wait: float | None = None
    truncated: bool = False
