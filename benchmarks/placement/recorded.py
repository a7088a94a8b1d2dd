"""Compares the loading cost of a run on a real cluster with the minimum that any schedule of its requests could have
paid.

The run is recorded as samples of the pool's ModelHosts (`kubectl get modelhosts -o json`, the items) and a list of its
requests. The hosts themselves count every load and wake; of a host process that ended between two samples, only the
cost after its last sample is lost. Sizes of a model are the smallest ones seen, prices the mean. `PYTHONPATH=benchmarks
python -m placement.recorded RUN.json` judges a record in a file: `{"samples": [[ModelHost, ...], ...], "requests":
[{"at": s, "model": "namespace/name", "seconds": s}, ...], "residency": s}`.
"""

from __future__ import annotations

import json
import math
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from placement import bound, schedules
from placement.program import TICK, Cost, Duties, Group, NoScheduleError, least
from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.model import Model, Need
from plimsoll_operator.simulation.pool import Host
from plimsoll_operator.simulation.trace import Request, Trace

Json = Mapping[str, Any]
CELL = 0.25
"""Seconds per cell of time for `schedules.lower_bound`."""


class RecordError(ValueError):
    """A record lacks data; the message names it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for `model` ("namespace/name"): it arrived at `at` (seconds of any clock) and ended `seconds` later."""

    at: float
    model: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """Requests and samples of a pool whose spec keeps models awake for at least `residency` seconds.

    `samples` are its ModelHosts from the API server in order of time, the first one before the requests. Models that
    were awake or images in the first sample were paid for earlier, but count in the bound: start with all models on
    disk, or the ratio is too good.
    """

    samples: Sequence[Sequence[Json]]
    requests: Sequence[Asked]
    residency: float

    def save(self, path: Path) -> None:
        """Save the run to a file, creating its folder if missing. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Run:
        """Read a run from a file. Raises RecordError, OSError."""
        try:
            found = json.loads(path.read_text())
            asked = [Asked(float(r["at"]), str(r["model"]), float(r["seconds"])) for r in found["requests"]]
            return cls(found["samples"], asked, float(found["residency"]))
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{path} is no record of a run: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Judged:
    """Seconds of loading: `paid`, in a number of `loads` and `wakes`, and three bounds for it.

    `bound` is the minimum of schedules that keep models awake for the configured residency, and in which no request
    takes longer, from arrival to end, than in this run; `ratio` is paid over bound. `free_bound` and `free_ratio` are
    for schedules without that residency; in `patient_bound` and `patient_ratio`, in addition, every request may take as
    long as the longest one did. The bounds' loads have the prices of each model's own loads in this run, so a slow
    machine raises all of them; `seconds_each` is their mean.
    """

    paid: float
    bound: float
    ratio: float
    free_bound: float
    free_ratio: float
    patient_bound: float
    patient_ratio: float
    seconds_each: float
    loads: int
    wakes: int
    requests: int
    longest: float


def judge(run: Run, steps: int = 3000) -> Judged:
    """Judge a run by the minimum that it could have paid. Raises RecordError."""
    samples, requests = run.samples, run.requests
    if len(samples) < 2 or not requests:
        raise RecordError("a record needs two samples of ModelHosts at least, and the requests between them")
    paid = _paid(samples)
    seen = {key: _seen(key, samples) for key in sorted({request.model for request in requests})}
    models = {key: one.priced(key, paid[key]) for key, one in seen.items()}
    start = min(request.at for request in requests)
    made = sorted((Request(r.at - start, models[r.model].key, r.seconds) for r in requests), key=lambda r: r.at)
    longest = max(request.seconds for request in requests)
    trace, hosts = Trace("recorded", tuple(models.values()), tuple(made)), _hosts(samples)
    # Several lower bounds of the same: the highest counts.
    patient = max(bound.lower_bound(trace, hosts, longest, steps), schedules.lower_bound(trace, hosts, longest))
    costs = {key: one.cost(models[key]) for key, one in seen.items()}
    room, waits = _room(models.values(), hosts), [request.seconds for request in made]
    by_price = schedules.lower_bound(trace, hosts, waits, cell=CELL)
    free = max(patient, by_price, _optimum(requests, costs, room, residency=0.0))
    best = max(free, _optimum(requests, costs, room, run.residency))
    seconds = sum(each.seconds for each in paid.values())
    events = sum(each.loads + each.wakes for each in paid.values())
    return Judged(
        paid=round(seconds, 2),
        bound=round(best, 2),
        ratio=round(seconds / best, 3),
        free_bound=round(free, 2),
        free_ratio=round(seconds / free, 3),
        patient_bound=round(patient, 2),
        patient_ratio=round(seconds / patient, 3),
        seconds_each=round(seconds / events, 2) if events else 0.0,
        loads=sum(each.loads for each in paid.values()),
        wakes=sum(each.wakes for each in paid.values()),
        requests=len(requests),
        longest=round(longest, 2),
    )


@dataclass(slots=True)
class _Paid:
    """Cost of a model on all hosts."""

    loads: int = 0
    wakes: int = 0
    seconds: float = 0.0


def _paid(samples: Sequence[Sequence[Json]]) -> dict[str, _Paid]:
    """Return the growth of each model's counters over all host processes. A counter that is new, or has decreased,
    started at 0.
    """
    paid: dict[str, _Paid] = defaultdict(_Paid)
    before: dict[tuple[str, str, str], _Paid] = {}
    for number, sample in enumerate(samples):
        for place, model, entry in _entries(sample):
            now = _Paid(entry.get("loads", 0), entry.get("wakes", 0), float(entry.get("loadingSeconds", 0)))
            last = before.get((*place, model), now if number == 0 else _Paid())
            if now.loads + now.wakes < last.loads + last.wakes:
                last = _Paid()
            before[*place, model] = now
            found = paid[model]
            found.loads += now.loads - last.loads
            found.wakes += now.wakes - last.wakes
            found.seconds += now.seconds - last.seconds
    return paid


def _entries(sample: Sequence[Json]) -> Iterator[tuple[tuple[str, str], str, Json]]:
    """Yield (host name, instance of its process), "namespace/name" and report of each model on each host."""
    for host in sample:
        status = host.get("status") or {}
        for entry in status.get("models") or ():
            place = (host["metadata"]["name"], status.get("instance", ""))
            yield place, f"{entry['namespace']}/{entry['name']}", entry


@dataclass(slots=True)
class _Seen:
    """Data about a model in the samples: bytes awake and as an image, seconds of loads and of wakes."""

    device: list[int] = field(default_factory=list)
    image: list[int] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)

    def priced(self, key: str, paid: _Paid) -> Model:
        """Return the model with mean prices of a load and a wake, scaled so that all of them together cost
        `paid.seconds`.
        """
        load, wake = fmean(self.loads), fmean(self.wakes or [0.0])
        scale = paid.seconds / (paid.loads * load + paid.wakes * wake) if paid.loads else 1.0
        namespace, _, name = key.partition("/")
        need = Need(weights=min(self.device), host=min(self.image, default=min(self.device)))
        return Model(ObjectKey(namespace, name), "1", (need,), load_seconds=scale * load, wake_seconds=scale * wake)

    def cost(self, model: Model) -> Cost:
        """Return the cost at the same prices; the shortest durations are the shortest seen."""
        shortest = (min(self.loads), min(self.wakes or [0.0]))
        return Cost(model.load_seconds, min(model.load_seconds, model.wake_seconds), shortest)


def _seen(key: str, samples: Sequence[Sequence[Json]]) -> _Seen:
    seen = _Seen()
    for sample in samples:
        for _, model, entry in _entries(sample):
            if model == key:
                seen.device += [entry["bytes"]] if entry.get("bytes") else []
                seen.image += [entry["hostBytes"]] if entry.get("hostBytes") else []
                seen.loads += [float(entry["loadSeconds"])] if "loadSeconds" in entry else []
                seen.wakes += [float(entry["wakeSeconds"])] if "wakeSeconds" in entry else []
    if not seen.device or not seen.loads:
        raise RecordError(f"{key} has requests, but no sample has it awake with the seconds of its load")
    return seen


def _optimum(requests: Sequence[Asked], costs: Mapping[str, Cost], room: int, residency: float) -> float:
    """Return the minimum seconds of loading for models of one size, of which `room` fit in memory. Each response is
    assumed to take as long as the shortest request, or no time if no schedule exists (then that request may have waited
    too). If there is still no schedule, because a load took less than any seen, return 0: no bound is known.
    """
    shortest = min(request.seconds for request in requests)
    for answer in (math.floor(shortest / TICK), 0):
        duties = Duties(answer=TICK * answer, residency=TICK * math.floor(residency / TICK))
        try:
            return least(_due(requests, costs, answer), [Group(frozenset(costs), room)], costs, duties)
        except NoScheduleError:
            continue
    return 0.0


def _due(requests: Sequence[Asked], costs: Mapping[str, Cost], answer: int) -> dict[str, list[tuple[float, float]]]:
    """Return the arrival of each model's requests and their latest starts, which are `answer` ticks before they ended.
    Times are in seconds, and start early enough that any model may be loaded before the first request.
    """
    start = min(request.at for request in requests) - max(cost.load for cost in costs.values())
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in requests:
        at, end = math.floor((one.at - start) / TICK), math.ceil((one.at - start + one.seconds) / TICK)
        found[one.model].append((TICK * at, TICK * (end - answer)))
    return dict(found)


def _room(models: Iterable[Model], hosts: Sequence[Host]) -> int:
    """Return how many models fit on all hosts, if each has the smallest ones."""
    sums = list(accumulate(sorted(model.need.device for model in models)))
    return sum(bisect_right(sums, host.line) for host in hosts)


def _hosts(samples: Sequence[Sequence[Json]]) -> list[Host]:
    """Return the hosts of the sample that has the most hosts. A host's memory is its line without the least that its
    runtime reserved in any sample.
    """
    largest = max(samples, key=len)
    hosts = []
    for host in largest:
        name, status = host["metadata"]["name"], host.get("status") or {}
        device, sleepers = status.get("device"), status.get("sleepers")
        if not device or not sleepers:
            raise RecordError(f"ModelHost {name} has reported no memory")
        own = min(d["reserved"] for d in _devices(samples, name))
        hosts.append(Host(name, device["line"] - own, sleepers["capacity"]))
    return hosts


def _devices(samples: Sequence[Sequence[Json]], name: str) -> Iterator[Json]:
    for sample in samples:
        for host in sample:
            if host["metadata"]["name"] == name and (device := (host.get("status") or {}).get("device")):
                yield device


if __name__ == "__main__":
    try:
        print(json.dumps(asdict(judge(Run.read(Path(sys.argv[1])))), indent=2))
    except (RecordError, OSError) as error:
        sys.exit(str(error))
