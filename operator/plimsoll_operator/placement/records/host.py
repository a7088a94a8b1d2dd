"""What a host (a shared runtime pod) says of itself."""

from __future__ import annotations

from msgspec import Struct

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.level import Condition, Pressure, State


class Copy(Struct, frozen=True, forbid_unknown_fields=True):
    """A model on a host, as reported.

    Bytes are what it holds now: `weights`, `workspace` and `kv` on the device, `host` in host memory. `active` requests
    are in flight, `waiting` ones are held until it wakes. `rate` is requests a second, decayed by half every five
    minutes, at the report's time. `since` is when it came into its state. After `failures` loads in a row that failed,
    none is tried before `retry`. Times are seconds since the epoch. `pod` is its index in its replica's group. `going`:
    it is being unloaded for good.
    """

    model: ObjectKey
    revision: str
    state: State
    weights: int = 0
    workspace: int = 0
    kv: int = 0
    host: int = 0
    active: int = 0
    waiting: int = 0
    rate: float = 0.0
    last_used: float = 0.0
    since: float = 0.0
    load_seconds: float = 0.0
    wake_seconds: float = 0.0
    failures: int = 0
    retry: float = 0.0
    pod: int = 0
    going: bool = False


class Sleepers(Struct, frozen=True, forbid_unknown_fields=True):
    """Host memory for images of sleeping models, in bytes."""

    capacity: int = 0
    used: int = 0


class Host(Struct, frozen=True, forbid_unknown_fields=True):
    """A report of a host, and what the cluster knows of its node.

    `line` is how many bytes of the device's `capacity` may be taken, of which `reserved` are taken by none of its
    models (the runtime's own share). `sequence` grows within an `instance` (a process) with each change of a state, an
    error or a decision. `time` is the host's own clock, in seconds since the epoch.
    """

    key: ObjectKey
    node: str
    capacity: int
    line: int
    zone: str = ""
    device: str = ""
    reserved: int = 0
    pressure: Pressure = Pressure.NONE
    sleepers: Sleepers = Sleepers()
    condition: Condition = Condition.READY
    instance: str = ""
    sequence: int = 0
    time: float = 0.0
    models: tuple[Copy, ...] = ()
