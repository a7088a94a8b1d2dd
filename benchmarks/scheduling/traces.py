"""Generated traffic whose lengths are like those of chat users.

Prompts and outputs are log-normal with the means of ShareGPT's conversations in the vLLM paper (161 and 338 tokens);
the spread of the logarithm, 1, makes the 99th percentile six times the mean. max_tokens reveals little about the
length, as in real traffic: one of three round numbers, of which the output uses a part.
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
    """One request: arrival in seconds, prompt, and output length. An interactive one is useful only if its first token
    arrives within `deadline` seconds. The first `prefix` tokens of the prompt are the same for all requests of a
    tenant.
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
        """Whether it has a deadline."""
        return self.deadline is not None


Arrivals = Callable[[random.Random, float, int], Iterator[float]]


def poisson(rng: random.Random, rate: float, count: int) -> Iterator[float]:
    """Yield arrival times in seconds of independent requests, `rate` per second on average."""
    now = 0.0
    for _ in range(count):
        now += rng.expovariate(rate)
        yield now


def bursts(rng: random.Random, rate: float, count: int) -> Iterator[float]:
    """Yield arrival times in seconds of requests that arrive BURST at a time, `rate` per second on average."""
    now = 0.0
    for index in range(count):
        if index % BURST == 0:
            now += rng.expovariate(rate / BURST)
        yield now


def chats(rng: random.Random, times: Iterator[float]) -> list[TraceRequest]:
    """Return requests of chat users, each with its own prompt."""
    return [_chat(rng, at) for at in times]


def tenants(rng: random.Random, times: Iterator[float]) -> list[TraceRequest]:
    """Return requests of applications, each of which puts the same long prefix before every short question. The
    prefixes together are larger than the cache.
    """
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
    """A kind of traffic. `load`: its rate of requests as a share of the engine's capacity."""

    name: str
    title: str
    load: float
    arrivals: Arrivals
    requests: Callable[[random.Random, Iterator[float]], list[TraceRequest]]

    def make(self, seed: int, count: int, capacity: float) -> list[TraceRequest]:
        """Return this number of requests; `capacity` is the engine's requests of this kind per second."""
        rng = random.Random(f"{self.name}/{seed}")
        return self.requests(rng, self.arrivals(rng, self.load * capacity, count))

    def sample(self, count: int = 2000) -> list[TraceRequest]:
        """Return requests for measuring their average duration; their arrival times mean nothing."""
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
    """Draw a log-normal length of at least 1."""
    return max(1, min(longest, round(rng.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD))))
