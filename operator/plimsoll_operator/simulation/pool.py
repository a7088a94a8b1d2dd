"""Simulates hosts that hold, load and wake models, with a clock that moves from event to event."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.level import State
from plimsoll_operator.placement.records.model import Model
from plimsoll_operator.placement.retention_value import HALF_LIFE, MEMORY, decayed
from plimsoll_operator.simulation.trace import Request, Trace

PER_REQUEST = math.log(2) / HALF_LIFE
"""What a request adds to a decayed rate, so that a steady rate is reported as itself."""


@dataclass(slots=True, eq=False)
class Copy:
    """A model on a host: OnDisk, InHost, Waking or Resident."""

    model: Model
    host: Host
    state: State = State.ON_DISK
    since: float = 0.0
    active: int = 0
    rate: float = 0.0
    last_used: float = 0.0

    @property
    def idle(self) -> bool:
        """Whether it may be evicted."""
        return self.state is State.RESIDENT and not self.active


@dataclass(slots=True, eq=False)
class Host:
    """A host with `line` bytes of device memory for awake models and `sleepers` bytes of host memory for images."""

    name: str
    line: int
    sleepers: int
    copies: dict[ObjectKey, Copy] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Bytes of device memory that awake models leave below the line."""
        return self.line - sum(copy.model.need.device for copy in self.copies.values() if copy.state.awake)

    @property
    def free_images(self) -> int:
        """Bytes of host memory left for more images."""
        images = (copy.model.need.host for copy in self.copies.values() if copy.state is State.IN_HOST)
        return self.sleepers - sum(images)


class Policy(Protocol):
    """Decides on placements. While requests wait, it is called after each change, and at the times that it requests."""

    name: str

    def begin(self, pool: Pool) -> None:
        """Prepare before the first request."""

    def decide(self, pool: Pool) -> float | None:
        """Wake, put to sleep and move models. Return the seconds after which to call again even without a change, or
        None.
        """


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The cost of a policy (`seconds` of loading and waking), and the waits of served requests in seconds."""

    policy: str
    seconds: float
    loads: int
    wakes: int
    moves: int
    served: int
    requests: int
    waits: tuple[float, ...]


class Pool:
    """The simulation of one trace under one policy."""

    def __init__(self, trace: Trace, hosts: Sequence[Host], policy: Policy) -> None:
        self.now = 0.0
        self.models = {model.key: model for model in trace.models}
        self.hosts = {host.name: host for host in hosts}
        self.waiting: dict[ObjectKey, deque[Request]] = defaultdict(deque)
        self.seconds = 0.0
        self.loads = self.wakes = self.moves = 0
        self._requests, self._policy = trace.requests, policy
        self._events: list[tuple[float, int, Copy | None, bool]] = []
        self._serial = count()
        self._waits: list[float] = []
        self._rates: dict[ObjectKey, tuple[float, float]] = {}

    def run(self) -> SimulationResult:
        """Simulate the whole trace, and return the result."""
        self._policy.begin(self)
        coming = iter(self._requests)
        request = next(coming, None)
        while request is not None or self._events:
            at = request.at if request is not None else float("inf")
            if self._events and self._events[0][0] <= at:
                self.now, _, copy, loaded = heapq.heappop(self._events)
                changed = self._happen(copy, loaded)
            elif request is not None:
                self.now = at
                changed = not self._arrive(request)
                request = next(coming, None)
            if changed and any(self.waiting.values()):
                again = self._policy.decide(self)
                if again is not None:
                    heapq.heappush(self._events, (self.now + max(again, 0.001), next(self._serial), None, False))
        served = tuple(self._waits)
        total = len(self._requests)
        return SimulationResult(
            self._policy.name, self.seconds, self.loads, self.wakes, self.moves, len(served), total, served
        )

    def copies(self, key: ObjectKey) -> Iterator[Copy]:
        """Return the copies of a model."""
        return (host.copies[key] for host in self.hosts.values() if key in host.copies)

    def rates(self) -> dict[ObjectKey, float]:
        """Return requests a second of each model that had any, decayed to the present."""
        return {key: decayed(rate, self.now - at, MEMORY) for key, (rate, at) in self._rates.items()}

    def place(self, model: Model, host: Host) -> Copy:
        """Add a model's files to a host. Raise ValueError if it has them."""
        if model.key in host.copies:
            raise ValueError(f"{host.name} already has {model.key}")
        copy = host.copies[model.key] = Copy(model, host, since=self.now)
        return copy

    def unload(self, copy: Copy) -> None:
        """Remove a copy. Raise ValueError if it is in use."""
        if copy.active or copy.state is State.WAKING:
            raise ValueError(f"{copy.model.key} on {copy.host.name} is in use")
        del copy.host.copies[copy.model.key]

    def sleep(self, copy: Copy, state: State) -> None:
        """Put a copy to sleep, InHost or OnDisk. Raise ValueError if it is in use or its image does not fit."""
        if copy.active or copy.state is State.WAKING:
            raise ValueError(f"{copy.model.key} on {copy.host.name} is in use")
        if state is State.IN_HOST and copy.model.need.host > copy.host.free_images:
            raise ValueError(f"{copy.host.name} has too little host memory for the image of {copy.model.key}")
        copy.state, copy.since = state, self.now

    def wake(self, copy: Copy) -> None:
        """Start to load a copy from files, or to wake it from its image, and count the seconds. Raise ValueError if the
        host lacks device memory.
        """
        model = copy.model
        if model.need.device > copy.host.free:
            raise ValueError(f"{copy.host.name} has too little device memory for {model.key}")
        image = copy.state is State.IN_HOST
        seconds = model.wake_seconds if image else model.load_seconds
        self.seconds += seconds
        self.wakes, self.loads = self.wakes + image, self.loads + (not image)
        copy.state, copy.since = State.WAKING, self.now
        heapq.heappush(self._events, (self.now + seconds, next(self._serial), copy, True))

    def _arrive(self, request: Request) -> bool:
        rate, at = self._rates.get(request.model, (0.0, self.now))
        self._rates[request.model] = decayed(rate, self.now - at, MEMORY) + math.log(2) / MEMORY, self.now
        awake = [copy for copy in self.copies(request.model) if copy.state is State.RESIDENT]
        if not awake:
            self.waiting[request.model].append(request)
            return False
        self._serve(request, min(awake, key=lambda copy: copy.active))
        return True

    def _happen(self, copy: Copy | None, loaded: bool) -> bool:
        """Handle an event: with `copy` the end of its load (`loaded`) or of a request, without a call that the policy
        has requested. Return whether the policy has to decide.
        """
        if copy is None:
            return True
        if not loaded:
            copy.active -= 1
            return not copy.active
        copy.state, copy.since = State.RESIDENT, self.now
        for request in self.waiting.pop(copy.model.key, ()):
            self._serve(request, copy)
        return True

    def _serve(self, request: Request, copy: Copy) -> None:
        self._waits.append(self.now - request.at)
        copy.active += 1
        copy.rate = decayed(copy.rate, self.now - copy.last_used) + PER_REQUEST
        copy.last_used = self.now
        heapq.heappush(self._events, (self.now + request.seconds, next(self._serial), copy, False))
