"""The workloads: who asks what. All greedy, EOS ignored, the same prompts for every system."""

from __future__ import annotations

import random
from dataclasses import dataclass

VOCAB, PREFIX = 32000, 512


@dataclass(frozen=True, slots=True)
class Request:
    """Prompt token ids and how many tokens to generate."""

    prompt: tuple[int, ...]
    output_len: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that arrive together; `users` of them at a time over HTTP when that is set.

    The first `shared` tokens of every prompt are the same.
    """

    name: str
    title: str
    requests: tuple[Request, ...]
    users: int | None = None
    shared: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of prompts that have to be computed, what they share once."""
        return sum(len(r.prompt) - self.shared for r in self.requests) + self.shared

    @property
    def output_tokens(self) -> int:
        """Tokens that the requests ask for."""
        return sum(r.output_len for r in self.requests)


def workloads(scale: float = 1.0) -> list[Workload]:
    """W1 to W4. `scale` below 1 cuts requests and lengths for a quick look; results are only recorded at 1."""

    def n(count: int) -> int:
        return max(2, round(count * scale))

    rng = random.Random(0)
    longest = max(32, n(256))
    mixed = tuple(_request(rng, rng.randint(16, 256), rng.randint(16, longest)) for _ in range(n(64)))
    prefix = _tokens(rng, PREFIX)
    shared = tuple(Request(prefix + _tokens(rng, 16), n(32)) for _ in range(n(64)))
    stream = tuple(_request(rng, rng.randint(16, 256), rng.randint(16, longest)) for _ in range(n(128)))
    return [
        Workload("W1", "batch 1, 128 in, 128 out", (_request(rng, 128, n(128)),)),
        Workload("W2", "64 mixed requests at once", mixed),
        Workload("W3", "64 requests, one prefix of 512", shared, shared=PREFIX),
        Workload("W4", "64 users streaming 128 requests over HTTP", stream, users=n(64)),
    ]


def _request(rng: random.Random, prompt_len: int, output_len: int) -> Request:
    return Request(_tokens(rng, prompt_len), output_len)


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, VOCAB) for _ in range(count))
