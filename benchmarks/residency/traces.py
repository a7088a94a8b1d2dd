"""Generated requests of a day: model, time, and duration of each response. A seed defines a day."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice

from plimsoll_runtime.residency.sizes import Seconds, Sizes
from plimsoll_runtime.residency.spec import ModelName
from residency.world import Model

DAY = 86_400.0
GIB = 2**30
BILLIONS = (0.6, 1.7, 3.0, 4.0, 7.0, 8.0, 0.6, 1.7, 3.0, 4.0, 7.0, 8.0, 13.0, 0.6, 1.7, 3.0)
"""Parameters of the models by rank in demand: frequent and rare models have all sizes."""
READ, MAP = 1.2 * GIB, 12 * GIB
"""Bytes per second from disk into an image, and from there into an engine that answers."""
ENGINE_SECONDS = 0.5
WORKSPACE, KV = 1 * GIB, 1 * GIB


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: time, model, and seconds of its response."""

    at: float
    model: int
    seconds: float


def models(count: int = len(BILLIONS)) -> list[Model]:
    """Return models with half-precision weights (two bytes per parameter). With more than sixteen, sizes repeat."""
    made = []
    for rank, billions in enumerate(islice(cycle(BILLIONS), count)):
        weights = int(2e9 * billions)
        sizes = Sizes(weights, weights, WORKSPACE, KV, 4 * KV)
        made.append(
            Model(ModelName("team", f"m{rank:02}"), sizes, Seconds(weights / READ, ENGINE_SECONDS + weights / MAP))
        )
    return made


def zipf(rng: random.Random, count: int = len(BILLIONS)) -> Iterator[Arrival]:
    """Constant demand; the k-th model's share is proportional to 1/k."""
    yield from _poisson(rng, lambda at: 0.1, lambda at: list(range(count)))


def shifting(rng: random.Random) -> Iterator[Arrival]:
    """The shares of `zipf`, but the order of models changes every two hours; twice as many requests by day as
    by night.
    """

    def order(at: float) -> list[int]:
        shift = int(at // 7200) * 3
        return [(rank + shift) % len(BILLIONS) for rank in range(len(BILLIONS))]

    yield from _poisson(rng, lambda at: 0.1 * (1 - 0.5 * math.cos(2 * math.pi * at / DAY)), order)


def scans(rng: random.Random) -> Iterator[Arrival]:
    """Four models in constant use, and once an hour all others one after another."""
    yield from _merged(
        _poisson(rng, lambda at: 0.1, lambda at: [0, 1, 2, 3]),
        (
            Arrival(hour * 3600.0 + 30.0 * i, model, rng.expovariate(1 / 4.0))
            for hour in range(24)
            for i, model in enumerate(range(4, len(BILLIONS)))
        ),
    )


def rhythm(rng: random.Random) -> Iterator[Arrival]:
    """Constant demand for a few models, and jobs every half hour with a burst of requests each."""
    jobs = [
        Arrival(start + rng.uniform(0, 20), model, rng.expovariate(1 / 4.0))
        for model in range(6, 12)
        for start in _starts(model)
        for _ in range(15)
    ]
    yield from _merged(_poisson(rng, lambda at: 0.05, lambda at: [0, 1, 2]), iter(jobs))


TRACES: dict[str, Callable[[random.Random], Iterator[Arrival]]] = {
    "zipf": zipf,
    "shifting": shifting,
    "scans": scans,
    "rhythm": rhythm,
}


def _starts(model: int) -> Iterator[float]:
    at = 60.0 + 300.0 * (model - 6)
    while at < DAY:
        yield at
        at += 1800.0


def _poisson(
    rng: random.Random, rate: Callable[[float], float], order: Callable[[float], list[int]]
) -> Iterator[Arrival]:
    """Return requests at a rate. The share of the k-th model in `order` is proportional to 1/k."""
    at = 0.0
    while True:
        at += rng.expovariate(rate(at))
        if at >= DAY:
            return
        ranked = order(at)
        [model] = rng.choices(ranked, [1 / (k + 1) for k in range(len(ranked))])
        yield Arrival(at, model, rng.expovariate(1 / 4.0))


def _merged(*streams: Iterator[Arrival]) -> Iterator[Arrival]:
    yield from sorted((arrival for stream in streams for arrival in stream), key=lambda arrival: arrival.at)
