"""Simulates a replica: prompts one at a time, outputs in a batch whose steps take longer the larger it is."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from scaling.day import Request


@dataclass(frozen=True, slots=True)
class Device:
    """Slots of a batch, prompt tokens a second, and the seconds of a step: constant, and for each request in the batch.

    `cache` is the number of tokens of its KV cache.
    """

    slots: int = 16
    prefill: float = 4000.0
    step: float = 0.02
    share: float = 0.0015
    cache: int = 32_000


@dataclass(order=True, slots=True)
class _Running:
    end: float
    request: Request = field(compare=False)


First = Callable[[Request, float], None]
Last = Callable[[Request, float, float], None]


class Replica:
    """Calls `first` with a request and the time of its first token, and `last` with its end and the seconds between its
    tokens.

    One token counter serves all running requests: a request ends when the counter has grown by its output's tokens.
    """

    def __init__(self, name: str, made: float, ready: float, device: Device, first: First, last: Last) -> None:
        self.name, self.made, self.ready = name, made, ready
        self.leaving = False
        self.gone = 0.0
        self._device = device
        self._first = first
        self._last = last
        self._waiting: deque[Request] = deque()
        self._prompt: Request | None = None
        self._prompt_ends = 0.0
        self._running: list[_Running] = []
        self._count = 0.0
        self._now = ready

    @property
    def running(self) -> int:
        """The number of requests in the batch, including the one whose prompt is being computed."""
        return len(self._running) + (self._prompt is not None)

    @property
    def waiting(self) -> int:
        """The number of requests in the queue."""
        return len(self._waiting)

    @property
    def load(self) -> int:
        """The number of all requests."""
        return self.running + self.waiting

    @property
    def kv(self) -> float:
        """The used share of its KV cache, estimated as if every output were half complete."""
        held = [entry.request for entry in self._running] + ([self._prompt] if self._prompt is not None else [])
        return min(1.0, sum(r.prompt + r.answer // 2 for r in held) / self._device.cache)

    def take(self, request: Request, now: float) -> None:
        """Add a request."""
        self.advance(now)
        self._waiting.append(request)
        self._begin(now)

    def next(self) -> float:
        """Return the time of the next end of a prompt or output, if no request arrives before; inf without requests."""
        ends = [self._prompt_ends] if self._prompt is not None else []
        if self._running:
            ends.append(self._now + (self._running[0].end - self._count) * self._gap())
        return min(ends, default=float("inf"))

    def advance(self, now: float) -> None:
        """Advance to this time."""
        while (at := self.next()) <= now:
            self._pass(at)
            if self._prompt is not None and self._prompt_ends <= at:
                request, self._prompt = self._prompt, None
                self._first(request, at)
                heapq.heappush(self._running, _Running(self._count + request.answer, request))
            while self._running and self._running[0].end <= self._count + 1e-9:
                gap = self._gap()
                self._last(heapq.heappop(self._running).request, at, gap)
            self._begin(at)
        self._pass(now)

    def _pass(self, now: float) -> None:
        if self._running:
            self._count += (now - self._now) / self._gap()
        self._now = max(self._now, now)

    def _begin(self, now: float) -> None:
        if self._prompt is None and self._waiting and self.running < self._device.slots:
            self._prompt = self._waiting.popleft()
            self._prompt_ends = now + self._prompt.prompt / self._device.prefill + self._gap()

    def _gap(self) -> float:
        return self._device.step + self._device.share * len(self._running)
