"""What a run on a real cluster paid in loading, beside the least that any schedule of its requests could have paid.

The run is recorded as samples of the pool's ModelHosts (`kubectl get modelhosts -o json`, the items) and a list of its
requests. Every load and wake is counted by the hosts themselves; a host's process that ended between two samples takes
with it only what it paid after the last one. Sizes of a model are the least that were seen, seconds the mean.

`PYTHONPATH=benchmarks python -m placement.recorded RUN.json` judges a record in a file:
`{"samples": [[ModelHost, ...], ...], "requests": [{"at": s, "model": "namespace/name", "seconds": s}, ...]}`.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from placement import bound, schedules
from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.model import Model, Need
from plimsoll_operator.simulation.pool import Host
from plimsoll_operator.simulation.trace import Request, Trace

Json = Mapping[str, Any]
CELL = 0.25
"""Seconds: answers take about as long."""


class RecordError(ValueError):
    """A record cannot be judged; the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: `at` seconds of any clock it came, for `model` ("namespace/name"), and ended `seconds` later."""

    at: float
    model: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Judged:
    """Seconds of loading: `paid`, in so many `loads` and `wakes`, and two bounds for it. `bound` is the least that any
    schedule pays under which no request takes longer, from its arrival to its end, than it did in this run; `ratio` is
    the one by the other. `patient_bound` and `patient_ratio` are for schedules that may let every request take as long
    as the longest one did. The bounds' loads are priced with the seconds that each model's own took in this run, so a
    slow machine raises all of them; `seconds_each` is their mean.
    """

    paid: float
    bound: float
    ratio: float
    patient_bound: float
    patient_ratio: float
    seconds_each: float
    loads: int
    wakes: int
    requests: int
    longest: float


def judge(samples: Sequence[Sequence[Json]], requests: Sequence[Asked], steps: int = 3000) -> Judged:
    """`samples` are ModelHosts as the API server has them, in the order of time: the first one before the requests.

    What was awake or slept as an image at the first sample was paid for before, and so was not for the bound: start
    with all models on disk, or the ratio flatters. Raises RecordError.
    """
    if len(samples) < 2 or not requests:
        raise RecordError("a record needs two samples of ModelHosts at least, and the requests between them")
    paid = _paid(samples)
    models = {key: _model(key, samples, paid) for key in sorted({request.model for request in requests})}
    start = min(request.at for request in requests)
    made = sorted((Request(r.at - start, models[r.model].key, r.seconds) for r in requests), key=lambda r: r.at)
    longest = max(request.seconds for request in requests)
    trace, hosts = Trace("recorded", tuple(models.values()), tuple(made)), _hosts(samples)
    # Two ways to bound the same from below: the higher one counts.
    patient = max(bound.lower_bound(trace, hosts, longest, steps), schedules.lower_bound(trace, hosts, longest))
    least = max(patient, schedules.lower_bound(trace, hosts, [request.seconds for request in made], cell=CELL))
    seconds = sum(each.seconds for each in paid.values())
    events = sum(each.loads + each.wakes for each in paid.values())
    return Judged(
        paid=round(seconds, 2),
        bound=round(least, 2),
        ratio=round(seconds / least, 3),
        patient_bound=round(patient, 2),
        patient_ratio=round(seconds / patient, 3),
        seconds_each=round(seconds / events, 2) if events else 0.0,
        loads=sum(each.loads for each in paid.values()),
        wakes=sum(each.wakes for each in paid.values()),
        requests=len(requests),
        longest=round(longest, 2),
    )


def read(path: Path) -> Judged:
    """The same of a file. Raises RecordError, OSError."""
    try:
        found = json.loads(path.read_text())
        asked = [Asked(float(r["at"]), str(r["model"]), float(r["seconds"])) for r in found["requests"]]
        samples = found["samples"]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is no record of a run: {type(error).__name__}: {error}") from error
    return judge(samples, asked)


@dataclass(slots=True)
class _Paid:
    """Of a model on all hosts."""

    loads: int = 0
    wakes: int = 0
    seconds: float = 0.0


def _paid(samples: Sequence[Sequence[Json]]) -> dict[str, _Paid]:
    """What each model's counters grew by, over all hosts' processes. A counter that is new, or fell, began at 0."""
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
    """Each host's process with each model that it has."""
    for host in sample:
        status = host.get("status") or {}
        for entry in status.get("models") or ():
            place = (host["metadata"]["name"], status.get("instance", ""))
            yield place, f"{entry['namespace']}/{entry['name']}", entry


def _model(key: str, samples: Sequence[Sequence[Json]], paid: Mapping[str, _Paid]) -> Model:
    """With the sizes that were seen. Seconds are scaled so that what was paid is what its loads and wakes cost."""
    device: list[int] = []
    image: list[int] = []
    loads: list[float] = []
    wakes: list[float] = []
    for sample in samples:
        for _, model, entry in _entries(sample):
            if model == key:
                device += [entry["bytes"]] if entry.get("bytes") else []
                image += [entry["hostBytes"]] if entry.get("hostBytes") else []
                loads += [float(entry["loadSeconds"])] if "loadSeconds" in entry else []
                wakes += [float(entry["wakeSeconds"])] if "wakeSeconds" in entry else []
    if not device or not loads:
        raise RecordError(f"{key} was asked for, but no sample has it awake with the seconds that its load took")
    load, wake = sum(loads) / len(loads), sum(wakes) / len(wakes) if wakes else 0.0
    found = paid[key]
    scale = found.seconds / (found.loads * load + found.wakes * wake) if found.loads else 1.0
    namespace, _, name = key.partition("/")
    need = Need(weights=min(device), host=min(image, default=min(device)))
    return Model(ObjectKey(namespace, name), "1", (need,), load_seconds=scale * load, wake_seconds=scale * wake)


def _hosts(samples: Sequence[Sequence[Json]]) -> list[Host]:
    """The pool as its largest sample has it: what each line leaves beside the runtime's own least share."""
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
        print(json.dumps(asdict(read(Path(sys.argv[1]))), indent=2))
    except (RecordError, OSError) as error:
        sys.exit(str(error))
