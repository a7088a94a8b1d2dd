"""A replica that serves: prompts one after the other, answers side by side, each step the slower the more there are."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from plimsoll_operator.simulation.day import Request


@dataclass(frozen=True, slots=True)
class Device:
    """Places of a batch, tokens of prompts a second, and the seconds of a step: alone, and for each that takes part.

    `cache` is how many tokens its KV cache has room for.
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
    """`first` hears of a request's first token and when, `last` of its end, and of the seconds between its tokens.

    Tokens are counted on one count for all that run: a request ends when that has grown by its own.
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
        """Requests in the batch."""
        return len(self._running) + (self._prompt is not None)

    @property
    def waiting(self) -> int:
        """Requests beside it."""
        return len(self._waiting)

    @property
    def load(self) -> int:
        """All of them."""
        return self.running + self.waiting

    @property
    def kv(self) -> float:
        """The share of its cache in use, as if every answer were half done."""
        held = [entry.request for entry in self._running] + ([self._prompt] if self._prompt is not None else [])
        return min(1.0, sum(r.prompt + r.answer // 2 for r in held) / self._device.cache)

    def take(self, request: Request, now: float) -> None:
        """A request comes."""
        self.advance(now)
        self._waiting.append(request)
        self._begin(now)

    def next(self) -> float:
        """When something ends, if nothing comes before."""
        ends = [self._prompt_ends] if self._prompt is not None else []
        if self._running:
            ends.append(self._now + (self._running[0].end - self._count) * self._gap())
        return min(ends, default=float("inf"))

    def advance(self, now: float) -> None:
        """Let time pass until then."""
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
