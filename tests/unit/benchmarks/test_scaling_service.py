"""A simulated day of one model: replicas that serve requests, and results of the scaler."""

from __future__ import annotations

import itertools

import pytest

from plimsoll_operator.spec.scaling import Scaling, Target
from scaling.day import Day, Request
from scaling.policies import Fixed, Hpa, ScalerPolicy
from scaling.replica import Device, Replica
from scaling.service import Policy, Service, SimulationResult

DEVICE = Device(slots=2, prefill=1000.0, step=0.1, share=0.0)


def served(requests: list[Request], device: Device = DEVICE) -> dict[float, tuple[float, float]]:
    """Return the times of the first and last tokens, by arrival."""
    first: dict[float, float] = {}
    last: dict[float, float] = {}
    replica = Replica(
        "r", 0.0, 0.0, device, lambda r, at: first.update({r.at: at}), lambda r, at, gap: last.update({r.at: at})
    )
    for request in requests:
        replica.take(request, request.at)
    replica.advance(1000.0)
    assert replica.load == 0
    return {at: (first[at], last[at]) for at in first}


def test_prompts_come_one_after_the_other_and_answers_side_by_side() -> None:
    found = served([Request(0.0, 1000, 10), Request(0.5, 2000, 10), Request(0.6, 1000, 1)])
    assert found[0.0] == pytest.approx((1.1, 2.1))
    assert found[0.5] == pytest.approx((3.2, 4.2)), "its prompt waits for the first one's, and takes two seconds"
    assert found[0.6] == pytest.approx((4.3, 4.4)), "and the third takes the place of the first, once the second is in"


def test_a_step_takes_longer_the_more_there_are() -> None:
    device = Device(slots=8, prefill=1e9, step=0.1, share=0.1)
    alone = served([Request(0.0, 1, 10)], device)[0.0]
    assert alone[1] - alone[0] == pytest.approx(2.0)
    both = served([Request(0.0, 1, 10), Request(0.001, 1, 10)], device)
    assert both[0.0][1] > alone[1]


def test_the_same_seed_is_the_same_day_and_bursts_are_in_it() -> None:
    day = Day(hours=6.0, busiest=1.0)
    requests = day.requests(3)
    assert requests == day.requests(3) != day.requests(4)
    assert all(a.at <= b.at for a, b in itertools.pairwise(requests))
    assert 2_000 < len(requests) < 20_000
    assert min(r.prompt for r in requests) >= 1


def run(policy: Policy, day: Day) -> tuple[SimulationResult, int]:
    requests = day.requests(1)
    return Service(requests, policy, start=30.0).run(day.hours * 3600), len(requests)


DAY = Day(hours=3.0, busiest=1.5, bursts=3)


@pytest.mark.parametrize("policy", [Fixed(1), Hpa(8.0, 8), ScalerPolicy(Scaling(0, 8, target=Target(4, ttft=0.8)))])
def test_every_request_is_answered(policy: Policy) -> None:
    result, asked = run(policy, DAY)
    assert len(result.first) == asked
    assert result.most <= 8
    assert result.busy <= result.most * (DAY.hours * 3600 + 600)


def test_the_scaler_costs_less_than_the_peak_and_keeps_more_than_the_mean() -> None:
    """Acceptance test of the scaler; benchmarks/results/scaling.json has the figures of a full day."""
    scaled, _ = run(ScalerPolicy(Scaling(0, 8, target=Target(4, ttft=0.8))), DAY)
    mean, _ = run(Fixed(1), DAY)
    peak, _ = run(Fixed(scaled.most), DAY)
    assert mean.attained(0.8) < scaled.attained(0.8)
    assert scaled.busy < 0.6 * peak.busy
    assert scaled.attained(0.8) > 0.95
