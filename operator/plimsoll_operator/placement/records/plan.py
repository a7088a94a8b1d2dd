"""What came of the planner's work: actions, where everything is to lie, and what cannot be had."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.action import Action
from plimsoll_operator.placement.records.level import Level


class Placement(Struct, frozen=True):
    """Where a model lies once the plan is carried out, and at which level."""

    model: ObjectKey
    host: ObjectKey
    level: Level
    why: str
    pod: int = 0


class Refused(StrEnum):
    """Why something cannot be had. The first five last until somebody changes something; the others pass."""

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
    """A request that the plan leaves open. `numbers` are the figures of `message`, bytes, seconds or counts by name."""

    model: ObjectKey
    reason: Refused
    message: str
    numbers: Mapping[str, float]


class Plan(Struct, frozen=True):
    """What to do, in this order.

    On each host an action waits until those before it there have ended. The rest of a plan may be dropped at any time:
    the next plan, made of newer reports, brings what is still wanted. `wait` is after how many seconds there may be
    more to do though nothing is reported. `truncated`: bounds on moves left something for the next plan.
    """

    actions: tuple[Action, ...]
    placements: tuple[Placement, ...]
    refusals: tuple[Refusal, ...] = ()
    wait: float | None = None
    truncated: bool = False
