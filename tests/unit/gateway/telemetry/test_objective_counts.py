"""Requests that meet and miss the objectives of their model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from plimsoll_cluster.objectives import LatencyObjective, Objectives
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, TableStore, build_table
from plimsoll_gateway.telemetry.metrics import CLIENT_GONE, Metrics
from plimsoll_gateway.telemetry.objective_counts import ObjectiveCounts
from plimsoll_gateway.telemetry.request_record import RequestRecord

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

ALL = Objectives(0.999, LatencyObjective(1.0, 0.95), LatencyObjective(0.05, 0.99))
NAME = "plimsoll_gateway_objective_"


class Times:
    """The times of a streamed response."""

    def __init__(self, first: float | None, mean_gap: float | None) -> None:
        self.first = first
        self.mean_gap = mean_gap


class Counted:
    """The counts of one model with these objectives."""

    def __init__(self, objectives: Objectives = ALL) -> None:
        store = TableStore()
        self.model = Model(ObjectKey("ns", "m"), ("m",), 1.0, "", (), objectives=objectives)
        store.replace(build_table([self.model]))
        self.metrics = Metrics(store)
        self._counts = ObjectiveCounts(self.metrics)

    def ended(
        self,
        status: int,
        times: Times | None = None,
        *,
        streams: bool = True,
        broke: bool = False,
        waited: float = 0.0,
    ) -> dict[str, str]:
        """Count a request; return the objectives that it met or missed."""
        record = RequestRecord()
        record.streams, record.times = streams, times
        before = self.values()
        ended_ns = record.phases.began_ns + int(waited * 1e9)
        self._counts.ended(self.model, status, record, ended_ns, broke=broke)
        now = self.values()
        return {name: outcome for (name, outcome), value in now.items() if value > before.get((name, outcome), 0.0)}

    def values(self) -> dict[tuple[str, str], float]:
        return {
            (sample.labels["objective"], sample.labels["outcome"]): sample.value
            for metric in self.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == f"{NAME}requests_total"
        }


@pytest.mark.parametrize(
    ("status", "broke", "outcome"),
    [
        (200, False, "met"),
        (404, False, "met"),
        (429, False, "met"),
        (CLIENT_GONE, False, "met"),
        (200, True, "missed"),
        (500, False, "missed"),
        (503, False, "missed"),
        (529, False, "missed"),
    ],
)
def test_what_a_client_did_is_no_failure_of_the_service(status: int, broke: bool, outcome: str) -> None:
    assert Counted().ended(status, streams=False, broke=broke) == {"availability": outcome}


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (Times(1.0, 0.05), {"first_token": "met", "inter_token": "met"}),
        (Times(1.01, 0.01), {"first_token": "missed", "inter_token": "met"}),
        (Times(0.2, 0.051), {"first_token": "met", "inter_token": "missed"}),
        (Times(0.2, None), {"first_token": "met"}),
        (Times(None, None), {}),
        (None, {}),
    ],
)
def test_times_of_streamed_answers(times: Times | None, expected: dict[str, str]) -> None:
    counted = Counted()
    assert counted.ended(200, times) == {"availability": "met", **expected}
    assert counted.ended(200, times, streams=False) == {"availability": "met"}


@pytest.mark.parametrize(("waited", "expected"), [(0.9, {}), (1.1, {"first_token": "missed"})])
def test_a_client_that_gives_up_has_waited_too_long_or_is_not_counted(waited: float, expected: dict[str, str]) -> None:
    assert Counted().ended(CLIENT_GONE, waited=waited) == {"availability": "met", **expected}


def test_without_objectives_nothing_is_counted() -> None:
    counted = Counted(Objectives())
    assert counted.ended(200, Times(9.0, 9.0)) == {}
    assert counted.values() == {}
    assert NAME.encode() + b"ratio{" not in counted.metrics.render(None).body


def test_both_outcomes_have_series_and_the_objectives_are_gauges() -> None:
    counted = Counted()
    counted.ended(200, Times(0.1, 0.01))
    assert counted.values()["availability", "missed"] == 0
    text = counted.metrics.render(None).body.decode()
    for line in (
        'ratio{model="m",namespace="ns",objective="availability"} 0.999',
        'ratio{model="m",namespace="ns",objective="first_token"} 0.95',
        'seconds{model="m",namespace="ns",objective="first_token"} 1.0',
        'seconds{model="m",namespace="ns",objective="inter_token"} 0.05',
    ):
        assert NAME + line in text
    assert f'{NAME}seconds{{model="m",namespace="ns",objective="availability"' not in text


async def test_requests_through_the_gateway_are_counted(world: World, ok: Behaviour) -> None:
    async def streams(request: Request) -> None:
        request.begin_events()
        for number in range(3):
            request.chunk(f"data: {number}\n\n")
        request.end()

    async def breaks(request: Request) -> None:
        request.begin_events()
        request.chunk("data: 1\n\n")
        await request.writer.drain()
        request.die()

    upstream = await world.upstream(ok, streams, breaks)
    generous = Objectives(0.9, LatencyObjective(300.0, 0.95), LatencyObjective(300.0, 0.95))
    world.show(world.replica(upstream), objectives=generous)
    bodies: list[Any] = [{"model": "m"}, {"model": "m", "stream": True}, {"model": "m", "stream": True}]
    for body in bodies:
        async with world.post(body) as response:
            assert response.status == 200
            await response.read()
    found = {
        (objective, outcome): await world.metric(
            f'{NAME}requests_total{{model="m",namespace="ns",objective="{objective}",outcome="{outcome}"}}'
        )
        for objective in ("availability", "first_token", "inter_token")
        for outcome in ("met", "missed")
    }
    assert found == {
        ("availability", "met"): 2,
        ("availability", "missed"): 1,
        ("first_token", "met"): 2,
        ("first_token", "missed"): 0,
        ("inter_token", "met"): 1,
        ("inter_token", "missed"): 0,
    }
