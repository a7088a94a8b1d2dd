"""What a host says of itself. Times are seconds since the epoch, sizes bytes, in JSON with camelCase keys."""

from __future__ import annotations

import msgspec


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The device's memory, as the ledger has it; `pressure` is none, some or full, as measured.

    `findings`: what a person should hear of the device, as it was when the host started, and that it is lost.
    """

    kind: str
    name: str
    capacity: int
    line: int
    reserved: int
    used: int
    free: int
    pressure: str
    findings: tuple[str, ...]


class SleepersReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Host memory for the images of models that sleep."""

    capacity: int
    used: int


class NeedsReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a model takes once it is awake, at least, and what its image takes of host memory (0: it has none).

    From its headers until an engine has measured it.
    """

    weights: int
    workspace: int
    kv: int
    image: int


class ModelReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One model. `weights`, `workspace` and `kv` are its grant, zero while it has none; `host_bytes` is its image.

    `needs` is None until its files are there. `rate` is requests a second, `value` the retention value, `why` the
    reason of its state. `load_seconds` and `wake_seconds` are those of the last time, `loading_seconds` all that its
    `loads` and `wakes` took here together.
    """

    namespace: str
    name: str
    revision: str
    served_names: tuple[str, ...]
    state: str
    since: float
    why: str
    weights: int
    workspace: int
    kv: int
    host_bytes: int
    needs: NeedsReport | None
    active: int
    waiting: int
    rate: float
    last_used: float | None
    value: float
    load_seconds: float | None
    wake_seconds: float | None
    loads: int
    wakes: int
    loading_seconds: float
    pinned: bool
    weight: float
    priority: int
    error: str | None


class Decision(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was done with a model and why: Woken, Asleep, Evicted, Refused, Loaded or Unloaded."""

    sequence: int
    time: float
    namespace: str
    name: str
    action: str
    why: str


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything. `sequence` grows with each change of a state, an error or a decision; numbers alone raise it not."""

    instance: str
    sequence: int
    time: float
    device: DeviceReport
    sleepers: SleepersReport
    models: tuple[ModelReport, ...]
    decisions: tuple[Decision, ...]
