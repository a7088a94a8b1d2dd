"""Who asks what when: made-up traffic whose lengths are like those of people who chat.

Prompts and answers are log-normal with the means of ShareGPT's conversations as the vLLM paper reports them (161 and
338 tokens); the spread of the logarithm, 1, makes the 99th percentile six times the mean. What clients set as
max_tokens says little about the length, as in life: one of three round numbers, of which the answer uses a part.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MEAN_PROMPT, MEAN_ANSWER, SPREAD = 161, 338, 1.0
LONGEST_PROMPT, LONGEST_ANSWER = 1500, 1500
LIMITS = (256, 512, 2048)
INTERACTIVE_SHARE = 0.3
DEADLINES = (0.5, 1.0, 2.0, 4.0)
TENANTS, TENANT_PREFIX, TENANT_ANSWER = 40, 768, 48
BURST = 40


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: seconds at which it comes, what it asks, how long its answer will be.

    An interactive one is of no use unless its first token is there within `deadline` seconds. The first `prefix`
    tokens of the prompt are the tenant's own, the same in each of its requests.
    """

    at: float
    prompt_len: int
    answer_len: int
    max_tokens: int
    deadline: float | None
    tenant: int = 0
    prefix: int = 0

    @property
    def interactive(self) -> bool:
        """Whether somebody sits and waits for it."""
        return self.deadline is not None


Arrivals = Callable[[random.Random, float, int], Iterator[float]]


def poisson(rng: random.Random, rate: float, count: int) -> Iterator[float]:
    """Each by itself, `rate` a second on average."""
    now = 0.0
    for _ in range(count):
        now += rng.expovariate(rate)
        yield now


def bursts(rng: random.Random, rate: float, count: int) -> Iterator[float]:
    """BURST at a time, the same rate on average."""
    now = 0.0
    for index in range(count):
        if index % BURST == 0:
            now += rng.expovariate(rate / BURST)
        yield now


def chats(rng: random.Random, times: Iterator[float]) -> list[TraceRequest]:
    """People who chat, each with a prompt of their own."""
    return [_chat(rng, at) for at in times]


def tenants(rng: random.Random, times: Iterator[float]) -> list[TraceRequest]:
    """Applications with a long prompt of their own in front of every short question; more than the cache holds."""
    requests = []
    for at in times:
        own = _length(rng, 32, 200)
        answer = _length(rng, TENANT_ANSWER, 300)
        requests.append(
            TraceRequest(at, TENANT_PREFIX + own, answer, 512, _deadline(rng), rng.randrange(TENANTS), TENANT_PREFIX)
        )
    return requests


@dataclass(frozen=True, slots=True)
class Trace:
    """A kind of traffic, at a share of what the engine can do."""

    name: str
    title: str
    load: float
    arrivals: Arrivals
    requests: Callable[[random.Random, Iterator[float]], list[TraceRequest]]

    def make(self, seed: int, count: int, capacity: float) -> list[TraceRequest]:
        """So many requests; `capacity` is what the engine can do in requests of this kind a second."""
        rng = random.Random(f"{self.name}/{seed}")
        return self.requests(rng, self.arrivals(rng, self.load * capacity, count))

    def sample(self, count: int = 2000) -> list[TraceRequest]:
        """Requests without a rate, to see what one of them takes on average."""
        return self.make(0, count, 1.0)


TRACES = (
    Trace("steady", "chats, arriving singly at 95 % of capacity", 0.95, poisson, chats),
    Trace("overload", "chats, arriving singly at 130 % of capacity", 1.3, poisson, chats),
    Trace("bursts", f"chats, arriving {BURST} at a time, 70 % of capacity", 0.7, bursts, chats),
    Trace("tenants", f"{TENANTS} applications with prompts of {TENANT_PREFIX} tokens, at 100 %", 1.0, poisson, tenants),
)


def _chat(rng: random.Random, at: float) -> TraceRequest:
    limit = rng.choice(LIMITS)
    answer = min(limit, _length(rng, MEAN_ANSWER, LONGEST_ANSWER))
    return TraceRequest(at, _length(rng, MEAN_PROMPT, LONGEST_PROMPT), answer, limit, _deadline(rng))


def _deadline(rng: random.Random) -> float | None:
    return rng.choice(DEADLINES) if rng.random() < INTERACTIVE_SHARE else None


def _length(rng: random.Random, mean: int, longest: int) -> int:
    """Log-normal, from 1 up."""
    return max(1, min(longest, round(rng.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD))))
