"""The actions of plans for an object's pods and Service."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create a pod from the spec of the plan, with this group number and this index in the group. `leader`: the address
    of the group's leader; "" for a leader. `avoid`: values of `topologyKey` to which a leader does not go if possible.
    """

    why: str
    group: str
    index: int = 0
    leader: str = ""
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod, which drains by itself. `uid` makes sure that it is the observed pod. `grace`: seconds until it is
    killed; None for the pod's own grace period.
    """

    name: str
    uid: str
    why: str
    grace: int | None = None


@dataclass(frozen=True, slots=True)
class CreateService:
    """Create the Service."""

    why: str


@dataclass(frozen=True, slots=True)
class ApplyService:
    """Write the wanted fields into our existing Service by server-side apply."""

    why: str


Action = CreatePod | DeletePod | CreateService | ApplyService


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in order. `wait`: time after which to plan again, even if nothing has changed by then. `waits_for_turn`:
    whether a group is missing that may not be created yet. `given_back`: why a group is deleted that got no nodes, ""
    if none is.
    """

    actions: tuple[Action, ...]
    wait: timedelta | None = None
    waits_for_turn: bool = False
    given_back: str = ""

    @property
    def makes_unit(self) -> bool:
        """Whether a replica is created."""
        return any(map(is_new_unit, self.actions))


def is_new_unit(action: Action) -> bool:
    """Return whether an action creates the first pod of a replica."""
    return isinstance(action, CreatePod) and action.index == 0
