"""The simulated pool: its cost, its served requests, and what it rejects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.level import State
from plimsoll_operator.placement.records.model import Model, Need
from plimsoll_operator.simulation.commands import percentile, table
from plimsoll_operator.simulation.placement_policy import PlannerPolicy
from plimsoll_operator.simulation.pool import Host, Pool
from plimsoll_operator.simulation.trace import KINDS, Request, Shape, Trace, TraceError, make, read

A, B = ObjectKey("t", "a"), ObjectKey("t", "b")


def model(key: ObjectKey, size: int = 60) -> Model:
    return Model(key, "1", (Need(size, host=size),), load_seconds=10.0, wake_seconds=2.0)


def run(requests: list[Request], sleepers: int = 100) -> Pool:
    trace = Trace("test", (model(A), model(B)), tuple(requests))
    return Pool(trace, [Host("h1", 100, sleepers)], PlannerPolicy())


def test_a_load_is_paid_once_and_who_comes_meanwhile_waits_for_the_same() -> None:
    result = run([Request(0, A, 5), Request(4, A, 5), Request(50, A, 5)]).run()
    assert (result.seconds, result.loads, result.wakes) == (10.0, 1, 0)
    assert result.waits == (10.0, 6.0, 0.0)


def test_two_that_do_not_fit_take_turns_and_the_second_time_wakes_from_its_image() -> None:
    result = run([Request(0, A, 1), Request(100, B, 1), Request(200, A, 1)]).run()
    assert (result.seconds, result.loads, result.wakes) == (22.0, 2, 1)
    assert result.served == 3


def test_without_memory_for_sleepers_every_turn_is_a_load() -> None:
    result = run([Request(0, A, 1), Request(100, B, 1), Request(200, A, 1)], sleepers=0).run()
    assert (result.seconds, result.loads, result.wakes) == (30.0, 3, 0)


def test_what_is_in_use_is_waited_for() -> None:
    """A is busy until 510; B, requested at 20, is loaded then."""
    result = run([Request(0, A, 500), Request(20, B, 1)]).run()
    assert result.waits[1] == pytest.approx(500.0)


def test_a_pool_does_nothing_that_its_memory_or_its_requests_forbid() -> None:
    pool = run([])
    host = pool.hosts["h1"]
    first, second = pool.place(pool.models[A], host), pool.place(pool.models[B], host)
    pool.wake(first)
    with pytest.raises(ValueError, match="too little device memory for t/b"):
        pool.wake(second)
    with pytest.raises(ValueError, match="in use"):
        pool.sleep(first, State.ON_DISK)
    with pytest.raises(ValueError, match="h1 already has t/a"):
        pool.place(pool.models[A], host)
    first.state, host.sleepers = State.RESIDENT, 10
    with pytest.raises(ValueError, match="too little host memory for the image"):
        pool.sleep(first, State.IN_HOST)


@pytest.mark.parametrize("kind", KINDS)
def test_made_up_traces_are_their_seeds(kind: str) -> None:
    shape = Shape(models=12, hours=0.5)
    trace = make(kind, shape, 1)
    assert trace == make(kind, shape, 1)
    assert trace != make(kind, shape, 2)
    times = [request.at for request in trace.requests]
    assert times == sorted(times)
    assert times[-1] < 1800
    assert {request.model for request in trace.requests} <= {model.key for model in trace.models}


def test_a_scan_asks_for_every_model_in_turn() -> None:
    asked = [request.model for request in make("scan", Shape(models=5, hours=0.1), 0).requests]
    assert len(set(asked[:5])) == 5
    assert asked[:5] == asked[5:10]


@pytest.mark.long
def test_every_request_is_served_whatever_the_trace() -> None:
    for kind in KINDS:
        trace = make(kind, Shape(models=12, hours=0.2), 0)
        hosts = [Host(f"h{number}", 50 * 2**30, 20 * 2**30) for number in range(2)]
        result = Pool(trace, hosts, PlannerPolicy()).run()
        assert result.served == len(trace.requests) > 0


def test_a_recorded_trace_is_read_in_the_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [{"at": 9, "model": "t/b", "seconds": 1}, {"at": 3.5, "model": "t/a", "seconds": 2}]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert read(path, [model(A), model(B)]).requests == (Request(3.5, A, 2), Request(9, B, 1))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 1: '{' is not a request"),
        ('{"at": 1}', "is not a request"),
        ("[" * 100_000 + "]" * 100_000, r"line 1: '\[+' is not a request"),
        ('{"at": 1, "model": "t/c", "seconds": 1}', "no model 't/c'; it has t/a"),
        ('{"at": -1, "model": "t/a", "seconds": 1}', "finite and not negative"),
    ],
)
def test_a_bad_line_is_told(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with pytest.raises(TraceError, match=told):
        read(path, [model(A)])


def test_percentiles_and_the_table() -> None:
    assert percentile([3, 1, 2, 4], 50) == 2
    assert percentile([], 99) == 0
    text = table(run([Request(0, A, 5)]).run())
    assert "requests served         1 of 1" in text
    assert "10.0 / 10.0 / 10.0 s" in text
