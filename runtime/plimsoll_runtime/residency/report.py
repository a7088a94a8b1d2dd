"""The report of a host, its journal of decisions, and its counters.

Times are seconds since the epoch, sizes are bytes, keys are camelCase.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from plimsoll_runtime.residency.spec import ModelName


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The device's memory, by the ledger; `pressure` is none, some or full, as measured.

    `findings`: messages about the device from the start of the host, and the loss of the device.
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
    """Host memory for the images of sleeping models."""

    capacity: int
    used: int


class NeedsReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The minimum device memory of an awake model, and the host memory of its image (0: none).

    Predicted from its headers until an engine has been measured.
    """

    weights: int
    workspace: int
    kv: int
    image: int


class ModelReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One model. `weights`, `workspace` and `kv` are its grant, or 0 without one; `host_bytes` is its image.

    `needs` is None until its files are available. `rate` is requests per second, `value` the retention value, `why` the
    reason of its state. `load_seconds` and `wake_seconds` are the last measured times, `loading_seconds` the sum for
    all `loads` and `wakes` on this host.
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
    """An action on a model and its reason: Woken, Asleep, Evicted, Refused, Loaded or Unloaded."""

    sequence: int
    time: float
    namespace: str
    name: str
    action: str
    why: str


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The complete report. `sequence` grows with each change of a state, an error or a decision, but not of other
    numbers.
    """

    instance: str
    sequence: int
    time: float
    device: DeviceReport
    sleepers: SleepersReport
    models: tuple[ModelReport, ...]
    decisions: tuple[Decision, ...]


KEPT = 64


class Journal:
    """The last decisions. `sequence` grows with each change of a state, an error or a decision.

    `wall` returns seconds since the epoch.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self.sequence = 0
        self.wall = wall
        self._decisions: deque[Decision] = deque(maxlen=KEPT)
        self._news = asyncio.Event()

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The last decisions, oldest first."""
        return tuple(self._decisions)

    def note(self) -> None:
        """Increase `sequence` by one, which ends the waits of `beyond`."""
        self.sequence += 1
        self._news.set()
        self._news = asyncio.Event()

    def decide(self, name: ModelName, action: str, why: str) -> None:
        """Record a decision about a model."""
        self.note()
        self._decisions.append(
            Decision(
                sequence=self.sequence,
                time=self.wall(),
                namespace=name.namespace,
                name=name.name,
                action=action,
                why=why,
            )
        )

    async def beyond(self, after: int, seconds: float) -> None:
        """Return when the sequence exceeds `after`, or after `seconds`."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                while self.sequence <= after:
                    await self._news.wait()
        except TimeoutError:
            return


BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Bucket bounds in seconds."""


@dataclass
class Times:
    """A histogram of durations: `counts[i]` is the number of those of at most `BOUNDS[i]` seconds and more than the
    bound before; the last one counts all longer ones.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


@dataclass
class Counters:
    """Counters. `refusals` are by code; `drops` are images dropped to free host memory."""

    loads: int = 0
    wakes: int = 0
    sleeps: int = 0
    evictions: int = 0
    drops: int = 0
    deaths: int = 0
    failures: int = 0
    resizes: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    load_seconds: Times = field(default_factory=Times)
    wake_seconds: Times = field(default_factory=Times)
    wait_seconds: Times = field(default_factory=Times)
