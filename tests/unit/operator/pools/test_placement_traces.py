"""Traces of placement decisions: one for each that decides something, with its actions, refusals and reasons."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from operator_support.pooled import POOL, Process, World, run
from server_support.collected_traces import CollectedTraces

from plimsoll_operator.pools import pool_controller
from plimsoll_operator.pools.placement_traces import PlacementTraces
from plimsoll_operator.pools.placer import Placer
from plimsoll_operator.pools.pool_controller import PLACEMENT
from plimsoll_telemetry import attributes as names


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> CollectedTraces:
    found = CollectedTraces()

    def with_traces(*args: Any, **options: Any) -> Any:
        return made(*args, **{**options, "traces": PlacementTraces(found)})  # type: ignore[arg-type]

    made = Placer
    monkeypatch.setattr(pool_controller, "Placer", with_traces)
    return found


def settled(models: int) -> tuple[World, Process]:
    world = World()
    world.ask_for_pool(1)
    for number in range(models):
        world.ask_for(f"m{number}")
    process = Process(world)
    run(process.settle())
    return world, process


def test_each_placement_is_in_a_trace_with_its_reason(traces: CollectedTraces) -> None:
    world, _ = settled(2)
    events = [event for spans in traces.traces for span in spans for event in span.events]
    placed = {event.attributes[names.MODEL]: event.attributes for event in events if event.name == "place"}
    assert set(placed) == {f"{POOL.namespace}/m0", f"{POOL.namespace}/m1"}
    for attributes in placed.values():
        assert attributes[names.REASON] == "Missing"
        assert attributes[names.EXPLANATION]
        assert attributes[names.HOST] in {f"{POOL.namespace}/{name}" for name in world.hosts}


def test_the_phases_follow_each_other_below_the_decision(traces: CollectedTraces) -> None:
    settled(1)
    assert traces.traces
    for root, *phases in traces.traces:
        assert (root.name, root.parent_id, root.error) == ("place models", 0, None)
        assert root.attributes[names.POOL] == POOL.name
        assert [phase.name for phase in phases] == ["observe", "plan", "apply"]
        assert all(phase.parent_id == root.span_id for phase in phases)
        assert all(before.end_ns == after.start_ns for before, after in pairwise(phases))
        assert (root.start_ns, root.end_ns) == (phases[0].start_ns, phases[-1].end_ns)


def test_a_plan_that_decides_nothing_is_no_trace(traces: CollectedTraces) -> None:
    _, process = settled(2)
    before = len(traces.traces)
    for _ in range(3):
        run(process.one_pass(POOL.of(PLACEMENT)))
    assert len(traces.traces) == before


def test_a_refusal_is_in_one_trace_as_long_as_its_reason_lasts(traces: CollectedTraces) -> None:
    world, process = settled(1)
    world.ask_for("large", runtime={"kvMemory": "4Gi"})
    for _ in range(3):
        run(process.settle())
        run(process.one_pass(POOL.of(PLACEMENT)))
    refusals = [event for spans in traces.traces for span in spans for event in span.events if event.name == "refuse"]
    assert [event.attributes[names.MODEL] for event in refusals] == [f"{POOL.namespace}/large"]
    assert refusals[0].attributes[names.REASON] == "TooLarge"
