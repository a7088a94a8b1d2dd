"""Decodes and checks the report of a host."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.name_patterns import DeviceKind, Instance, NamespaceName, ObjectName, ServedName

LIMIT = 4 * 2**20
"""The most bytes of a report, enough for a thousand models."""
MODELS = 1024

Bytes = Annotated[int, Meta(ge=0, le=2**50)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Time = Annotated[float, Meta(ge=0, le=1e11)]
Number = Annotated[float, Meta(ge=0)]
Text = Annotated[str, Meta(max_length=4096)]
State = Literal["Absent", "Fetching", "OnDisk", "InHost", "Waking", "Resident", "Draining"]
ON_DEVICE = frozenset({"Waking", "Resident", "Draining"})
ASLEEP = frozenset({"InHost", "OnDisk"})


class BadReportError(Exception):
    """The host's report is not valid; the message says why."""


class Device(Struct, frozen=True, rename="camel"):
    """The device of a host and its memory, in bytes. `reserved`: the runtime's own part of the line. `used`: `reserved`
    and the models' grants.
    """

    kind: DeviceKind
    capacity: Bytes
    line: Bytes
    reserved: Bytes
    used: Bytes
    free: Bytes
    pressure: Literal["none", "some", "full"]
    name: Text = ""


class Sleepers(Struct, frozen=True, rename="camel"):
    """Host memory for images of sleeping models, in bytes."""

    capacity: Bytes
    used: Bytes


class Needs(Struct, frozen=True, rename="camel"):
    """Bytes that a model needs at least while awake, and the bytes of its image in host memory."""

    weights: Bytes
    workspace: Bytes
    kv: Bytes
    image: Bytes


class ModelEntry(Struct, frozen=True, rename="camel"):
    """One model on the host. `error`: why its last fetch or load failed, None if it did not. `value`: its retention
    value.

    `weights`, `workspace` and `kv` are granted bytes of device memory, `host_bytes` those of its image. `load_seconds`
    and `wake_seconds` are of the last load and wake; `loading_seconds` is the sum of all.
    """

    namespace: NamespaceName
    name: ObjectName
    revision: Text
    state: State
    since: Time
    served_names: Annotated[tuple[ServedName, ...], Meta(max_length=16)] = ()
    why: Text = ""
    weights: Bytes = 0
    workspace: Bytes = 0
    kv: Bytes = 0
    host_bytes: Bytes = 0
    needs: Needs | None = None
    active: Count = 0
    waiting: Count = 0
    rate: Number = 0.0
    last_used: Time | None = None
    value: float = 0.0
    load_seconds: Seconds | None = None
    wake_seconds: Seconds | None = None
    loads: Count = 0
    wakes: Count = 0
    loading_seconds: Seconds = 0.0
    pinned: bool = False
    weight: Number = 1.0
    priority: int = 0
    error: Text | None = None

    @property
    def key(self) -> ObjectKey:
        """The ModelDeployment's key."""
        return ObjectKey(self.namespace, self.name)

    @property
    def device(self) -> int:
        """Bytes of device memory that it is granted; 0 unless it is Waking, Resident or Draining."""
        return self.weights + self.workspace + self.kv if self.state in ON_DEVICE else 0


class Decision(Struct, frozen=True, rename="camel"):
    """A decision of the host about a model, with its reason."""

    sequence: Count
    time: Time
    namespace: NamespaceName
    name: ObjectName
    action: Literal["Woken", "Asleep", "Evicted", "Refused", "Loaded", "Unloaded"]
    why: Text

    @property
    def key(self) -> ObjectKey:
        """The ModelDeployment's key."""
        return ObjectKey(self.namespace, self.name)


class Report(Struct, frozen=True, rename="camel"):
    """The report of a host. `sequence` grows within an `instance` (a process)."""

    instance: Instance
    sequence: Count
    time: Time
    device: Device
    sleepers: Sleepers
    models: Annotated[tuple[ModelEntry, ...], Meta(max_length=MODELS)] = ()
    decisions: Annotated[tuple[Decision, ...], Meta(max_length=256)] = ()

    @property
    def version(self) -> tuple[str, int]:
        """The host process and the sequence of its last change. Equal versions have equal states and decisions."""
        return self.instance, self.sequence

    def entry(self, model: ObjectKey) -> ModelEntry | None:
        """Return the entry of a model; None if there is none."""
        return next((entry for entry in self.models if entry.key == model), None)


def decode_report(data: bytes) -> Report:
    """Decode a host's report. Raise BadReportError if it is not valid."""
    try:
        return msgspec.json.decode(data, type=Report)
    except UNREADABLE as error:
        raise BadReportError(f"its report is not valid: {error}") from error
