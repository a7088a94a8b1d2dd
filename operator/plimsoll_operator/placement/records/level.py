"""How far a model is brought on a host, in the words of the host API."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """What somebody asks for: weights in device memory and an engine, an image in host memory, or files alone."""

    RESIDENT = "Resident"
    IN_HOST = "InHost"
    ON_DISK = "OnDisk"


class State(StrEnum):
    """What a host reports of a model. A model that it does not report is absent."""

    FETCHING = "Fetching"
    ON_DISK = "OnDisk"
    IN_HOST = "InHost"
    WAKING = "Waking"
    RESIDENT = "Resident"
    DRAINING = "Draining"

    @property
    def awake(self) -> bool:
        """Whether it serves, or is about to."""
        return self in (State.RESIDENT, State.WAKING)

    @property
    def on_device(self) -> bool:
        """Whether it takes device memory."""
        return self in (State.RESIDENT, State.WAKING, State.DRAINING)

    @property
    def settled(self) -> bool:
        """Whether nothing is under way, so that it may be told to do something else."""
        return self in (State.RESIDENT, State.IN_HOST, State.ON_DISK)


class Pressure(StrEnum):
    """How a host feels about its memory: some means that nothing should be added, full that something must go."""

    NONE = "none"
    SOME = "some"
    FULL = "full"


class Condition(StrEnum):
    """What may be done with a host: anything; nothing new; everything moves off it; it is not there any more."""

    READY = "Ready"
    CORDONED = "Cordoned"
    DRAINING = "Draining"
    LOST = "Lost"


class Spread(StrEnum):
    """What replicas of a model should differ in, where that can be had. They never share a host."""

    NONE = "none"
    NODE = "node"
    ZONE = "zone"
