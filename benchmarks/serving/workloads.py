"""The workloads. All are greedy, ignore EOS, and have the same prompts for every system.

Lengths are the same in every round and the tokens are new, so that no system finds an earlier round's prompts in its
cache.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from serving.models import DEMO, MIXTURE, SMALL, Shape

PREFIX, FIRST_TOKEN = 512, 300


@dataclass(frozen=True, slots=True)
class Request:
    """Prompt token ids, and the number of tokens to generate."""

    prompt: tuple[int, ...]
    output_len: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that arrive together; with `users`, this many at a time, streaming. The first `shared` tokens of all
    prompts are equal; `primer` is answered before the clock starts.
    """

    name: str
    title: str
    requests: tuple[Request, ...]
    users: int | None = None
    shared: int = 0
    primer: Request | None = None
    shape: Shape = SMALL

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens to compute: shared ones once, or not at all if primed."""
        once = 0 if self.primer is not None else self.shared
        return sum(len(r.prompt) - self.shared for r in self.requests) + once

    @property
    def output_tokens(self) -> int:
        """Number of requested tokens."""
        return sum(r.output_len for r in self.requests)


def workloads(scale: float = 1.0, number: int = 1) -> list[Workload]:
    """Return W1 to W4, the demo model's and the mixture's, with the tokens of round `number`. `scale` below 1 reduces
    requests and lengths for a quick test; results are only recorded at 1.
    """

    def n(count: int) -> int:
        return max(2, round(count * scale))

    lengths, tokens = random.Random(0), random.Random(number)
    longest = max(32, n(256))

    def mixed(count: int, shape: Shape = SMALL) -> tuple[Request, ...]:
        sizes = [(lengths.randint(16, 256), lengths.randint(16, longest)) for _ in range(count)]
        return tuple(_request(tokens, i, o, shape) for i, o in sizes)

    def shared() -> tuple[Request, ...]:
        prefix = _tokens(tokens, PREFIX, SMALL)
        return tuple(Request(prefix + _tokens(tokens, 16, SMALL), n(32)) for _ in range(n(64)))

    burst, late = shared(), shared()
    primer = Request(late[0].prompt[:PREFIX] + _tokens(tokens, 16, SMALL), 1)
    return [
        Workload("W1", "batch 1, 128 in, 128 out", (_request(tokens, 128, n(128)),)),
        Workload("W2", "64 mixed requests at once", mixed(n(64))),
        Workload("W3", "64 requests, one prefix of 512", burst, shared=PREFIX),
        Workload("W3p", "the same, the prefix primed", late, shared=PREFIX, primer=primer),
        Workload("W4", "64 users streaming 128 requests", mixed(n(128)), users=n(64)),
        Workload("D1", "Gemma 3 270M, one user", (_request(tokens, 128, n(128), DEMO),), users=1, shape=DEMO),
        Workload("D16", "Gemma 3 270M, 16 users, 48 requests", mixed(n(48), DEMO), users=n(16), shape=DEMO),
        Workload("W6", "64 mixed requests at once, 8 of 64 experts", mixed(n(64), MIXTURE), shape=MIXTURE),
    ]


def workload(name: str, scale: float, number: int) -> Workload:
    """Return one workload of round `number`."""
    return next(w for w in workloads(scale, number) if w.name == name)


def _request(rng: random.Random, prompt_len: int, output_len: int, shape: Shape = SMALL) -> Request:
    return Request(_tokens(rng, prompt_len, shape), output_len)


def _tokens(rng: random.Random, count: int, shape: Shape) -> tuple[int, ...]:
    """Draw tokens above those that a vocabulary uses for bytes and control."""
    return tuple(rng.randrange(FIRST_TOKEN, shape.vocab) for _ in range(count))
