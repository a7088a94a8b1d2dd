"""Simulates one model over a day: a gateway that holds and routes requests, replicas that start and drain, and a
policy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scaling.day import Request
from scaling.replica import Device, Replica

TICK = 1.0
"""Seconds between two checks for ended requests; arrivals have their own time."""
BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0, 60.0, 120.0)
GAPS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(slots=True)
class Counted:
    """A histogram as a gateway keeps it: the number of values by upper bound."""

    bounds: tuple[float, ...]
    count: int = 0
    seconds: float = 0.0
    counts: list[int] = field(default_factory=list)

    def measure(self, seconds: float, times: int = 1) -> None:
        """Add a value, `times` times."""
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.count += times
        self.seconds += seconds * times

    def cumulative(self) -> tuple[tuple[float, int], ...]:
        """Return pairs of a bound and the count up to it."""
        total, found = 0, []
        for bound, count in zip(self.bounds, self.counts or [0] * len(self.bounds), strict=False):
            total += count
            found.append((bound, total))
        return tuple(found)


class Policy(Protocol):
    """Decides on the number of replicas."""

    @property
    def name(self) -> str:
        """The name for tables."""

    def wanted(self, service: Service) -> int:
        """Return the number of replicas; called once a second."""


@dataclass(slots=True)
class SimulationResult:
    """The result of a day. `first` are seconds to first tokens, `busy` replica-seconds from creations to ends of
    drains. `most`: highest number of replicas that the policy wanted; `changes`: how often it wanted another number.

    `course` has (second, replicas, requests in the last minute) for each minute.
    """

    first: list[float] = field(default_factory=list)
    busy: float = 0.0
    most: int = 0
    changes: int = 0
    course: list[tuple[float, int, int]] = field(default_factory=list)

    def attained(self, seconds: float) -> float:
        """Return the share of requests whose first token came within `seconds`."""
        return sum(value <= seconds for value in self.first) / len(self.first) if self.first else 1.0


class Service:
    """The simulated service. `start`: seconds from a replica's creation until it serves."""

    def __init__(self, requests: Sequence[Request], policy: Policy, start: float, device: Device | None = None) -> None:
        self._requests = deque(requests)
        self._policy = policy
        self._start = start
        self.device = device or Device()
        self.now = 0.0
        self.replicas: list[Replica] = []
        self.held: deque[Request] = deque()
        self.asked, self.ended, self.last_asked = 0, 0, 0.0
        self.first_byte, self.event_gap = Counted(BOUNDS), Counted(GAPS)
        self.result = SimulationResult()
        self._made = 0
        self._minute = 0

    @property
    def serving(self) -> list[Replica]:
        """Replicas that take requests."""
        return [r for r in self.replicas if not r.leaving and r.ready <= self.now]

    @property
    def staying(self) -> list[Replica]:
        """Replicas that are not draining."""
        return [r for r in self.replicas if not r.leaving]

    @property
    def in_flight(self) -> int:
        """The number of requests that have arrived and not ended."""
        return self.asked - self.ended

    def run(self, end: float) -> SimulationResult:
        """Simulate until `end`, and until all requests have ended."""
        self._keep(self._policy.wanted(self))
        while self.now < end or self.in_flight:
            self._tick()
        for replica in self.replicas:
            self.result.busy += self.now - replica.made
        return self.result

    def _tick(self) -> None:
        until = self.now + TICK
        while self._requests and self._requests[0].at < until:
            request = self._requests.popleft()
            self.now = max(self.now, request.at)
            self.asked += 1
            self._minute += 1
            self.last_asked = self.now
            self._send(request)
        self.now = until
        for replica in self.replicas:
            replica.advance(until)
        while self.held and self.serving:
            self._send(self.held.popleft())
        self._keep(self._policy.wanted(self))
        if int(until) % 60 == 0:
            self.result.course.append((until, len(self.staying), self._minute))
            self._minute = 0

    def _send(self, request: Request) -> None:
        serving = self.serving
        if not serving:
            self.held.append(request)
            return
        for replica in serving:
            replica.advance(self.now)
        min(serving, key=lambda r: r.load).take(request, self.now)

    def _keep(self, wanted: int) -> None:
        self.result.changes += wanted != len(self.staying)
        while len(self.staying) < wanted:
            self._made += 1
            ready = self.now + self._start if self.now else 0.0
            self.replicas.append(Replica(f"r{self._made}", self.now, ready, self.device, self._first, self._last))
        while len(self.staying) > wanted:
            min(self.staying, key=lambda r: (r.ready <= self.now, r.load)).leaving = True
        for replica in [r for r in self.replicas if r.leaving and not r.load]:
            self.replicas.remove(replica)
            self.result.busy += self.now - replica.made
        self.result.most = max(self.result.most, wanted)

    def _first(self, request: Request, at: float) -> None:
        self.result.first.append(at - request.at)
        self.first_byte.measure(at - request.at)

    def _last(self, request: Request, at: float, gap: float) -> None:
        self.ended += 1
        self.event_gap.measure(gap, request.answer)
