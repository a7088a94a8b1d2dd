"""A recorded run: the hosts' counters, and the bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from placement.recorded import Asked, Judged, RecordError, Run, judge
from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.level import State
from plimsoll_operator.placement.records.model import Model, Need
from plimsoll_operator.simulation.placement_policy import PlannerPolicy
from plimsoll_operator.simulation.pool import Host, Pool
from plimsoll_operator.simulation.trace import Request, Trace

GIB = 2**30


def entry(name: str, loads: int = 0, wakes: int = 0, seconds: float = 0.0, **more: Any) -> dict[str, Any]:
    counted = {"loads": loads, "wakes": wakes, "loadingSeconds": f"{seconds:.1f}", "loadSeconds": "4", "bytes": GIB}
    return {"namespace": "t", "name": name, **counted, **more}


def sample(*entries: dict[str, Any], host: str = "h", instance: str = "i", reserved: int = 0) -> dict[str, Any]:
    device = {"line": 2 * GIB + reserved, "reserved": reserved}
    status = {"instance": instance, "device": device, "sleepers": {"capacity": 0}, "models": list(entries)}
    return {"metadata": {"name": host}, "status": status}


ASKED = [Asked(0.0, "t/a", 5.0), Asked(100.0, "t/a", 1.0)]


def judged(samples: list[list[Any]], asked: list[Asked], residency: float = 0.0) -> Judged:
    return judge(Run(samples, asked, residency))


def test_only_what_was_counted_between_the_samples_is_paid() -> None:
    found = judged([[sample(entry("a", 3, 1, 13.0))], [sample(entry("a", 4, 1, 17.0))]], ASKED)
    assert (found.paid, found.loads, found.wakes) == (4.0, 1, 0)
    assert (found.bound, found.ratio, found.longest) == (4.0, 1.0, 5.0)


def test_a_host_that_is_new_or_begins_anew_is_counted_from_zero() -> None:
    other = sample(entry("a", 1, 0, 5.0), host="h2")
    for last in ([sample(entry("a", 1, 0, 4.0), instance="i2")], [sample(entry("a", 3, 0, 12.0)), other]):
        found = judged([[sample(entry("a", 3, 0, 12.0))], last], ASKED)
        assert found.loads == 1
        assert found.paid == float(last[-1]["status"]["models"][0]["loadingSeconds"])


def test_a_model_that_was_placed_again_on_the_same_process_is_counted_from_zero() -> None:
    found = judged([[sample(entry("a", 3, 0, 12.0))], [sample()], [sample(entry("a", 1, 0, 4.0))]], ASKED)
    assert (found.paid, found.loads) == (4.0, 1)


def test_memory_that_the_runtime_takes_and_kv_that_could_shrink_do_not_raise_the_bound() -> None:
    """Two models of a GiB fit into the rest of the line, although one of them temporarily took two."""
    asked = [Asked(at, f"t/{name}", 1.0) for at, name in enumerate("abababab")]
    asked = [Asked(100 * one.at, one.model, one.seconds) for one in asked]
    before = [sample(entry("a"), entry("b"), reserved=GIB)]
    later = [sample(entry("a", 1, 0, 4.0, bytes=2 * GIB), entry("b", 1, 0, 4.0), reserved=GIB)]
    assert judged([before, later], asked).bound == 8.0
    large = {"bytes": 3 * GIB // 2}
    before = [sample(entry("a", **large), entry("b", **large))]
    later = [sample(entry("a", 1, 0, 4.0, **large), entry("b", 1, 0, 4.0, **large))]
    assert judged([before, later], asked).bound > 8.0


@pytest.mark.parametrize(
    ("samples", "asked", "told"),
    [
        ([[sample()]], ASKED, "two samples"),
        ([[sample()], [sample()]], [], "the requests between them"),
        ([[sample()], [sample()]], ASKED, "t/a has requests, but no sample has it awake"),
        ([[sample(entry("a", bytes=0))], [sample(entry("a", bytes=0))]], ASKED, "no sample has it awake"),
        ([[{"metadata": {"name": "x"}}], [sample(entry("a"))]], ASKED, "ModelHost x has reported no memory"),
    ],
)
def test_what_a_record_lacks_is_told(samples: list[list[Any]], asked: list[Asked], told: str) -> None:
    with pytest.raises(RecordError, match=told):
        judged(samples, asked)


@pytest.mark.long
def test_who_is_asked_for_more_often_than_requests_wait_has_to_be_awake_for_it() -> None:
    """Two models take turns on a host of one. The slowest request took 25 s: considering pairs of requests, nothing
    need be paid.
    """
    asked = [Asked(10.0 * at, f"t/{name}", 25.0) for at, name in enumerate("ab" * 8)]
    large: dict[str, Any] = {"bytes": 2 * GIB, "wakeSeconds": "4"}
    before = [sample(entry("a", **large), entry("b", **large))]
    found = judged([before, [sample(entry("a", 4, 0, 24.0, **large), entry("b", 4, 0, 24.0, **large))]], asked)
    assert (found.paid, found.loads, found.seconds_each) == (48.0, 8, 6.0)
    # Loads are priced with the 6 s that they took, and not with the 4 that the last one did.
    assert 2 * 6.0 < found.bound <= 48.0


def test_what_the_pool_orders_to_stay_awake_raises_the_bound_for_those_who_obey_and_no_other() -> None:
    """The host has room for one of A, B and C, which stay for 20 s. Without that constraint C is between B and A; with
    it A must be first, and wakes again after C.
    """
    held: dict[str, Any] = {"bytes": 2 * GIB, "hostBytes": GIB, "wakeSeconds": "4"}
    asked = [Asked(0, "t/b", 1), Asked(0, "t/a", 25), Asked(0, "t/c", 49), Asked(50, "t/a", 23)]
    before = [sample(*(entry(name, **held) for name in "abc"))]
    later = [sample(entry("a", 1, 1, 8.0, **held), *(entry(name, 1, 0, 4.0, **held) for name in "bc"))]
    free, ordered = judged([before, later], asked), judged([before, later], asked, residency=20.0)
    assert (free.bound, free.free_bound, ordered.free_bound) == (12.0, 12.0, 12.0)
    assert (ordered.bound, ordered.ratio, ordered.free_ratio) == (16.0, 1.0, 1.333)


def test_a_run_is_kept_and_what_is_no_record_is_told(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "run.json"
    samples = [[sample(entry("a"))], [sample(entry("a", 1, 0, 4.0))]]
    run = Run(samples, [Asked(3.0, "t/a", 5.0)], 2.0)
    run.save(path)
    assert Run.read(path) == run
    assert judge(run).ratio == 1.0
    path.write_text(json.dumps({"samples": samples}))
    with pytest.raises(RecordError, match=r"run\.json is no record of a run: KeyError: 'requests'"):
        Run.read(path)


@pytest.mark.long
def test_what_a_simulated_pool_pays_is_what_its_samples_say_and_no_less_than_the_bound() -> None:
    keys = [ObjectKey("t", name) for name in "abcd"]
    models = tuple(Model(key, "1", (Need(10, host=10),), load_seconds=10.0, wake_seconds=1.0) for key in keys)
    order = "abcdabdcadbcabcd" * 2
    requests = tuple(Request(40.0 * at, keys["abcd".index(name)], 1.0) for at, name in enumerate(order))
    counted = Counting(Trace("test", models, requests), [Host("h1", 20, 5), Host("h2", 10, 10)], PlannerPolicy())
    before = counted.sample()
    outcome = counted.run()
    asked = [Asked(r.at, str(r.model), w + r.seconds) for r, w in zip(requests, outcome.waits, strict=True)]
    found = judged([before, *counted.samples, counted.sample()], asked)
    assert (found.paid, found.loads, found.wakes) == (outcome.seconds, outcome.loads, outcome.wakes)
    assert 1.0 < found.ratio < 5.0


class Counting(Pool):
    """Counts like hosts, with a sample at each wake."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.counts: dict[tuple[str, ObjectKey], list[float]] = {}
        self.samples: list[list[Any]] = []

    def wake(self, copy: Any) -> None:
        paid, loads, wakes = self.seconds, self.loads, self.wakes
        super().wake(copy)
        count = self.counts.setdefault((copy.host.name, copy.model.key), [0, 0, 0.0])
        count[0] += self.loads - loads
        count[1] += self.wakes - wakes
        count[2] += self.seconds - paid
        self.samples.append(self.sample())

    def sample(self) -> list[Any]:
        hosts = []
        for host in self.hosts.values():
            entries = []
            for (name, key), (loads, wakes, seconds) in self.counts.items():
                if name == host.name:
                    copy = host.copies.get(key)
                    awake = copy is not None and copy.state in (State.WAKING, State.RESIDENT)
                    held: dict[str, Any] = {"bytes": 10 if awake else 0, "loads": loads, "wakes": wakes}
                    held |= {"loadingSeconds": seconds, "loadSeconds": "10", "wakeSeconds": "1"}
                    entries.append({"namespace": key.namespace, "name": key.name, **held})
            device, sleepers = {"line": host.line, "reserved": 0}, {"capacity": host.sleepers}
            status = {"instance": "i", "device": device, "sleepers": sleepers, "models": entries}
            hosts.append({"metadata": {"name": host.name}, "status": status})
        return hosts
