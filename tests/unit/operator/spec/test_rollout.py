"""`spec.rollout` in numbers of pods."""

from __future__ import annotations

import pytest

from plimsoll_operator.spec.rollout import Amount, Rollout, read_rollout


@pytest.mark.parametrize(
    ("values", "replicas", "surge", "unavailable"),
    [
        ({}, 0, 1, 0),
        ({}, 1, 1, 0),
        ({}, 2, 1, 1),
        ({}, 200, 1, 1),
        ({"maxSurge": "25%", "maxUnavailable": "25%"}, 1, 1, 0),
        ({"maxSurge": "25%", "maxUnavailable": "25%"}, 5, 2, 1),
        ({"maxSurge": "100%", "maxUnavailable": "100%"}, 3, 3, 3),
        ({"maxSurge": 0}, 1, 0, 1),
        ({"maxSurge": "0%", "maxUnavailable": "10%"}, 5, 0, 1),
        ({"maxSurge": 2, "maxUnavailable": 7}, 3, 2, 3),
    ],
)
def test_amounts(values: dict[str, Amount], replicas: int, surge: int, unavailable: int) -> None:
    found = read_rollout(values)
    assert (found.surge(replicas), found.unavailable(replicas)) == (surge, unavailable)
    assert found.surge(replicas) or found.unavailable(replicas) or not replicas, "something can be replaced"


@pytest.mark.parametrize(("unavailable", "least"), [(0, 3), (1, 2), ("100%", 1)])
def test_a_model_is_ready_with_one_pod_at_the_least(unavailable: Amount, least: int) -> None:
    assert Rollout(max_unavailable=unavailable).least_ready(3) == least
