"""Sleep levels and states of a model on a host, as in the host API."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """A requested level: weights and an engine on the device, an image in host memory, or only files."""

    RESIDENT = "Resident"
    IN_HOST = "InHost"
    ON_DISK = "OnDisk"


class State(StrEnum):
    """A reported state of a model on a host."""

    FETCHING = "Fetching"
    ON_DISK = "OnDisk"
    IN_HOST = "InHost"
    WAKING = "Waking"
    RESIDENT = "Resident"
    DRAINING = "Draining"

    @property
    def awake(self) -> bool:
        """Whether it serves, or is waking."""
        return self in (State.RESIDENT, State.WAKING)

    @property
    def on_device(self) -> bool:
        """Whether it takes device memory."""
        return self in (State.RESIDENT, State.WAKING, State.DRAINING)

    @property
    def settled(self) -> bool:
        """Whether no operation is running, so that another may start."""
        return self in (State.RESIDENT, State.IN_HOST, State.ON_DISK)


class Pressure(StrEnum):
    """Memory pressure of a host. `some`: other hosts are preferred; `full`: no model is placed there, and memory is
    freed.
    """

    NONE = "none"
    SOME = "some"
    FULL = "full"


class Condition(StrEnum):
    """What may happen on a host: Ready, anything; Cordoned, nothing new; Draining, all models move away; Lost, it is
    gone.
    """

    READY = "Ready"
    CORDONED = "Cordoned"
    DRAINING = "Draining"
    LOST = "Lost"


class Spread(StrEnum):
    """What the hosts of a model's replicas should not share, if possible. Two replicas never share a host."""

    NONE = "none"
    NODE = "node"
    ZONE = "zone"
