"""Objectives of a ModelDeployment, and those that follow from its scaling."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll_cluster.objectives import NO_OBJECTIVES, LatencyObjective, Objectives, read_objectives

TARGET = {"scaling": {"maxReplicas": 2, "target": {"ttftMilliseconds": 800, "itlMilliseconds": 50}}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, NO_OBJECTIVES),
        ({"objectives": {}, "scaling": {"maxReplicas": 2, "target": {"queue": 4}}}, NO_OBJECTIVES),
        ({"objectives": {"availability": "99.9%"}}, Objectives(availability=0.999)),
        ({"objectives": {"availability": "99.999%"}}, Objectives(availability=0.99999)),
        (
            {"objectives": {"ttftMilliseconds": 500, "ttftShare": "99.5%", "itlMilliseconds": 40}},
            Objectives(None, LatencyObjective(0.5, 0.995), LatencyObjective(0.04, 0.95)),
        ),
        (TARGET, Objectives(None, LatencyObjective(0.8, 0.95), LatencyObjective(0.05, 0.95))),
        (
            TARGET | {"objectives": {"availability": "99%", "ttftMilliseconds": 900, "itlShare": "99%"}},
            Objectives(0.99, LatencyObjective(0.9, 0.95), LatencyObjective(0.05, 0.99)),
        ),
    ],
)
def test_times_that_are_left_out_are_those_of_scaling(spec: dict[str, Any], expected: Objectives) -> None:
    assert read_objectives(spec) == expected


def test_each_objective_has_a_name_a_share_and_perhaps_a_time() -> None:
    assert list(NO_OBJECTIVES.all()) == []
    found = Objectives(0.999, LatencyObjective(0.8, 0.95), LatencyObjective(0.05, 0.99))
    assert list(found.all()) == [
        ("availability", 0.999, None),
        ("first_token", 0.95, 0.8),
        ("inter_token", 0.99, 0.05),
    ]
