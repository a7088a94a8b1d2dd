"""The report of a host, which is a pod of a RuntimePool."""

from __future__ import annotations

from msgspec import Struct

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.level import Condition, Pressure, State


class Copy(Struct, frozen=True, forbid_unknown_fields=True):
    """A model on a host, as reported.

    Bytes held at the time of the report: `weights`, `workspace` and `kv` on the device, `host` in host memory. `active`
    requests are in flight, `waiting` requests wait until it wakes. `rate` is requests a second at the report's time,
    with a half-life of five minutes. `since` is when it entered its state. `load_seconds` and `wake_seconds` are
    measured, 0 if not yet. After `failures` consecutive failed loads, the next one is tried at `retry`. Times are
    seconds since the epoch. `going`: it is being unloaded for good.
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
    going: bool = False


class Sleepers(Struct, frozen=True, forbid_unknown_fields=True):
    """Host memory for images of sleeping models, in bytes."""

    capacity: int = 0
    used: int = 0


class Host(Struct, frozen=True, forbid_unknown_fields=True):
    """A host's report, with what the cluster reports of its node.

    `capacity` is the device's memory in bytes, `line` the largest sum of grants on it. `reserved` bytes of the line are
    the runtime's own and not for models. `sequence` grows within an `instance` (a process) with each change of a state,
    an error or a decision. `time` is the host's clock, in seconds since the epoch.
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
