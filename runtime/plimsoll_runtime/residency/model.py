"""The state of one model on a host, and its demand: decayed uses, and the period of its bursts."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace

from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.residency.engines.base import Found, Image, Resident
from plimsoll_runtime.residency.ledger import Grant
from plimsoll_runtime.residency.lifecycle.operations import Operation
from plimsoll_runtime.residency.planner.view import ModelView
from plimsoll_runtime.residency.report import ModelReport, NeedsReport
from plimsoll_runtime.residency.sizes import Seconds
from plimsoll_runtime.residency.spec import ModelName, ModelSpec, served_names
from plimsoll_runtime.residency.states import Level, State, check_transition
from plimsoll_runtime.residency.wake_queue import Waiters

HALF_LIFE = 300.0
"""Seconds after which a use counts half."""
QUIET = 60.0
"""Seconds without a use after which the next use starts a new burst."""
KEPT = 6
"""Number of burst starts that are remembered."""
LEAST_BURSTS = 4
REGULAR = 0.1
"""The most that any gap between bursts may deviate from their mean, as a share of it, to count as periodic."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The uses of a model. Times are seconds of one clock. `last_used` is minus infinity before the first use."""

    _count: float = 0.0
    last_used: float = -math.inf
    _bursts: tuple[float, ...] = ()

    def used(self, now: float) -> Demand:
        """Return the demand after one more use."""
        quiet = now - self.last_used > QUIET
        bursts = (*self._bursts, now)[-KEPT:] if quiet else self._bursts
        return replace(self, _count=self.frequency(now) + 1.0, last_used=now, _bursts=bursts)

    def frequency(self, now: float) -> float:
        """Return the number of uses, each halved for every five minutes since."""
        if self._count == 0.0:
            return 0.0
        return self._count * math.exp2(-max(0.0, now - self.last_used) / HALF_LIFE)

    def rate(self, now: float) -> float:
        """Return uses per second of a steady demand with this frequency."""
        return self.frequency(now) * math.log(2) / HALF_LIFE

    def due(self) -> float | None:
        """Predict when the next burst starts; None if bursts are not periodic or fewer than LEAST_BURSTS are known."""
        if len(self._bursts) < LEAST_BURSTS:
            return None
        gaps = [after - before for before, after in zip(self._bursts, self._bursts[1:], strict=False)]
        mean = sum(gaps) / len(gaps)
        if any(abs(gap - mean) > REGULAR * mean for gap in gaps):
            return None
        return self._bursts[-1] + mean


class Model:
    """A model and its records. Only its host changes it. Times are the event loop's, except those of reports.

    - `wish`: the level that an operation wants, at least. `rest`: the level to which it is being put to sleep, at most.
    - `leaving`: it is being removed. `next_spec`: replaces its spec when nothing of the model is in memory.
    - `yielding`: it drains for another model. `stopping`: it has drained, and its process is being ended.
    """

    def __init__(self, name: ModelName, spec: ModelSpec, waiters: Waiters, now: float) -> None:
        self.name = name
        self.spec = spec
        self.weight, self.priority, self.pinned = spec.weight, spec.priority, spec.pinned
        self.state = State.ABSENT
        self.since = now
        self.why = "placed"
        self.error: PlimsollError | None = None
        self.failures = 0
        self.retry_at = -math.inf
        self.unfit: str | None = None
        self.found: Found | None = None
        self.seconds = Seconds(0.0)
        self.measured_load = self.measured_wake = False
        self.demand = Demand()
        self.clock = 0.0
        self.image: Image | None = None
        self.resident: Resident | None = None
        self.waiters = waiters
        self.wish: Level | None = None
        self.wished_at = now
        self.rest: Level | None = None
        self.leaving = False
        self.next_spec: ModelSpec | None = None
        self.yielding = self.stopping = False
        self.kv_wanted: int | None = None
        self.kv_floor = 0
        self.loads = self.wakes = 0
        self.loading_seconds = 0.0
        self.operations: list[tuple[Operation, frozenset[State]]] = []
        self.task: asyncio.Task[None] | None = None
        self.called_off: asyncio.Task[None] | None = None
        self.resizing: asyncio.Task[None] | None = None

    def become(self, state: State, why: str, now: float) -> None:
        """Change the state. Raises TransitionError for an invalid transition."""
        check_transition(self.state, state)
        self.state, self.why, self.since = state, why, now

    @property
    def newest_spec(self) -> ModelSpec:
        """The spec that was placed last, possibly not in effect yet."""
        return self.next_spec or self.spec

    @property
    def changing(self) -> bool:
        """Whether it is being removed, replaced or put to sleep, so that nothing may wake it."""
        return self.leaving or self.next_spec is not None or self.rest is not None

    @property
    def asked(self) -> float | None:
        """The time since which it is wanted awake, by waiting requests, an operation or a pin; None if it is not."""
        since = [self.waiters.since] if self.waiters.since is not None else []
        if self.wish is Level.RESIDENT or self.pinned:
            since.append(self.wished_at)
        return min(since, default=None)

    def wants(self, level: Level, now: float) -> None:
        """Record that an operation wants at least this level."""
        if self.wish is None:
            self.wished_at = now
        self.wish = level

    def view(self, grant: Grant | None, now: float, *, elastic: bool = True) -> ModelView:
        """Return the model's part of a plan's input. Its files must have been fetched. `elastic`: whether its KV cache
        can resize.
        """
        assert self.found is not None
        waiting = len(self.waiters)
        stats = None if self.resident is None else self.resident.engine.stats
        used = 0 if stats is None or grant is None or not stats.blocks_total else (
            grant.kv * stats.blocks_used // stats.blocks_total
        )  # fmt: skip
        return ModelView(
            name=self.name,
            state=self.state,
            sizes=self.found.sizes,
            seconds=self.seconds,
            since=self.since,
            grant=grant,
            image=0 if self.image is None or not self.image.complete else self.found.sizes.image,
            frequency=self.demand.frequency(now) + waiting + (self.wish is Level.RESIDENT),
            clock=self.clock,
            last_used=self.demand.last_used,
            weight=self.weight,
            priority=self.priority,
            pinned=self.pinned,
            active=0 if self.resident is None else self.resident.active,
            waiting=waiting,
            asked=None if self.changing else self.asked,
            retry_at=self.retry_at,
            kv_used=used,
            kv_floor=self.kv_floor,
            kv_wanted=self.kv_wanted if elastic or grant is None else grant.kv,
            yielding=self.yielding,
            fill=self.wish is Level.IN_HOST and not self.changing,
            due=None if self.changing else self.demand.due(),
        )

    def report(self, grant: Grant | None, now: float, wall: float) -> ModelReport:
        """Return the model's part of the report. `wall` is the epoch time at `now`."""
        last = self.demand.last_used
        return ModelReport(
            namespace=self.name.namespace,
            name=self.name.name,
            revision=self.spec.revision,
            served_names=served_names(self.name, self.spec),
            state=self.state.value,
            since=wall - (now - self.since),
            why=self.why,
            weights=0 if grant is None else grant.weights,
            workspace=0 if grant is None else grant.workspace,
            kv=0 if grant is None else grant.kv,
            host_bytes=0 if self.image is None else self.image.nbytes,
            needs=self._needs(),
            active=0 if self.resident is None else self.resident.active,
            waiting=len(self.waiters),
            rate=self.demand.rate(now),
            last_used=None if last == -math.inf else wall - (now - last),
            value=0.0 if self.found is None else self.view(grant, now).value,
            load_seconds=self.seconds.from_disk if self.measured_load else None,
            wake_seconds=self.seconds.wake if self.measured_wake else None,
            loads=self.loads,
            wakes=self.wakes,
            loading_seconds=self.loading_seconds,
            pinned=self.pinned,
            weight=self.weight,
            priority=self.priority,
            error=None if self.error is None else str(self.error),
        )

    def _needs(self) -> NeedsReport | None:
        if self.found is None:
            return None
        sizes = self.found.sizes
        return NeedsReport(weights=sizes.weights, workspace=sizes.workspace, kv=sizes.kv_minimum, image=sizes.image)
