"""Requests over time, synthetic or recorded."""

from __future__ import annotations

import bisect
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.model import Model, Need

GIB = 2**30
DISK, BUS = 2 * GIB, 20 * GIB
"""Bytes a second: files to an engine that serves, and an image to the device."""
START, SWITCH = 4.0, 0.4
"""Seconds that a load and a wake take besides the bytes."""
NAMESPACE = "made-up"


class TraceError(Exception):
    """A recorded trace cannot be read; the message names the line and the reason."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that arrives at `at` seconds and uses its model for `seconds` once it is awake."""

    at: float
    model: ObjectKey
    seconds: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests by arrival, and their models."""

    name: str
    models: tuple[Model, ...]
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a synthetic trace: models, hours, requests a second over all models, mean seconds of a request."""

    models: int = 72
    hours: float = 4.0
    rate: float = 0.5
    seconds: float = 5.0


def make(kind: str, shape: Shape, seed: int) -> Trace:
    """Make a synthetic trace. Raise KeyError for a kind that is not in KINDS."""
    random = Random(f"{kind} {seed}")
    models = _models(shape.models, random)
    arrivals = KINDS[kind](shape, random)
    requests = tuple(Request(at, models[index].key, random.expovariate(1 / shape.seconds)) for at, index in arrivals)
    return Trace(kind, models, requests)


def _models(number: int, random: Random) -> tuple[Model, ...]:
    """Return this many models with weights of 1 to 40 GiB, most of them near 8. Their order does not depend on size."""
    made = []
    for index in range(number):
        weights = int(min(40.0, max(1.0, random.lognormvariate(math.log(8), 0.8))) * GIB)
        need = Need(weights, workspace=GIB // 2, kv=GIB, host=weights)
        key = ObjectKey(NAMESPACE, f"m{index:03d}")
        load, wake = START + weights / DISK, SWITCH + weights / BUS
        made.append(Model(key, "1", (need,), load_seconds=load, wake_seconds=wake))
    return tuple(made)


def _poisson(rate: float, end: float, random: Random) -> Iterator[float]:
    at = random.expovariate(rate)
    while at < end:
        yield at
        at += random.expovariate(rate)


class _Zipf:
    """Chooses the index of a model: k - 1 (k from 1) with a probability in proportion to 1 / k."""

    def __init__(self, number: int) -> None:
        self._sums = list(itertools.accumulate(1 / rank for rank in range(1, number + 1)))

    def choose(self, random: Random) -> int:
        return bisect.bisect(self._sums, random.random() * self._sums[-1])


def _zipf(shape: Shape, random: Random) -> Iterator[tuple[float, int]]:
    """Yield (arrival in seconds, index of the model) of independent requests, with popularity by Zipf's law."""
    ranks = _Zipf(shape.models)
    for at in _poisson(shape.rate, 3600 * shape.hours, random):
        yield at, ranks.choose(random)


def _shifting(shape: Shape, random: Random) -> Iterator[tuple[float, int]]:
    """Yield requests like `_zipf`, but every half hour a random sixth of the models exchange their popularity."""
    ranks, order, turn = _Zipf(shape.models), list(range(shape.models)), 1800.0
    for at in _poisson(shape.rate, 3600 * shape.hours, random):
        while at > turn:
            places = random.sample(range(shape.models), max(2, shape.models // 6))
            moved = [order[place] for place in places]
            for place, model in zip(places, (*moved[1:], moved[0]), strict=True):
                order[place] = model
            turn += 1800.0
        yield at, order[ranks.choose(random)]


def _bursty(shape: Shape, random: Random) -> Iterator[tuple[float, int]]:
    """Yield sessions of about twenty requests to one model within minutes; popularity by Zipf's law."""
    ranks, end, length = _Zipf(shape.models), 3600 * shape.hours, 20
    found = []
    for begin in _poisson(shape.rate / length, end, random):
        model, at = ranks.choose(random), begin
        for _ in range(1 + int(random.expovariate(1 / (length - 1)))):
            found.append((at, model))
            at += random.expovariate(1 / 10.0)
    yield from sorted(entry for entry in found if entry[0] < end)


def _scan(shape: Shape, random: Random) -> Iterator[tuple[float, int]]:
    """Yield requests to one model after the other, repeatedly: the model used last is needed last."""
    order = list(range(shape.models))
    random.shuffle(order)
    gap = 1 / shape.rate
    for number in range(int(3600 * shape.hours * shape.rate)):
        yield number * gap, order[number % shape.models]


KINDS: dict[str, Callable[[Shape, Random], Iterator[tuple[float, int]]]] = {
    "zipf": _zipf,
    "shifting": _shifting,
    "bursty": _bursty,
    "scan": _scan,
}


def read(path: Path, models: Sequence[Model]) -> Trace:
    """Read a recorded trace: each line is a request as JSON, {"at": seconds, "model": "namespace/name", "seconds": in
    use}.

    Raise TraceError.
    """
    known = {str(model.key): model.key for model in models}
    requests = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            at, seconds, name = float(entry["at"]), float(entry["seconds"]), entry["model"]
        except (*UNREADABLE, KeyError, TypeError) as error:
            example = '{"at": 12.5, "model": "team/m", "seconds": 3.0}'
            raise TraceError(f"{path}, line {number}: {line[:80]!r} is not a request such as {example}") from error
        if name not in known:
            raise TraceError(f"{path}, line {number}: the state has no model {name!r}; it has {', '.join(known)}")
        if not (math.isfinite(at) and math.isfinite(seconds) and at >= 0 and seconds >= 0):
            raise TraceError(f"{path}, line {number}: at and seconds must be finite and not negative")
        requests.append(Request(at, known[name], seconds))
    return Trace(path.name, tuple(models), tuple(sorted(requests, key=lambda request: request.at)))
