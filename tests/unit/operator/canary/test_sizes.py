"""Numbers of pods of both revisions."""

from __future__ import annotations

import pytest

from plimsoll_operator.canary.sizes import canary_pods, kept_pods, stable_pods
from plimsoll_operator.spec.rollout import Rollout


@pytest.mark.parametrize(
    ("weight", "replicas", "surge", "pods"),
    [
        (10, 0, 1, 0),
        (1, 1, 1, 1),
        (10, 4, 1, 1),
        (50, 4, 1, 2),
        (51, 4, 1, 3),
        (100, 4, 1, 4),
        (100, 4, 0, 3),
        (100, 1, 0, 0),
        (34, 10, 1, 4),
    ],
)
def test_a_canary_has_its_share_of_pods_rounded_up_and_leaves_one(
    weight: int, replicas: int, surge: int, pods: int
) -> None:
    assert canary_pods(weight, replicas, Rollout(max_surge=surge)) == pods


@pytest.mark.parametrize(
    ("replicas", "unavailable", "ready", "others", "kept"),
    [(2, 0, 3, 0, 2), (2, 0, 3, 1, 1), (2, 0, 3, 2, 0), (3, 1, 3, 0, 2), (4, 0, 1, 0, 1), (0, 0, 3, 0, 0)],
)
def test_pods_of_a_canary_stay_while_too_few_others_serve(
    replicas: int, unavailable: int, ready: int, others: int, kept: int
) -> None:
    assert kept_pods(replicas, Rollout(max_unavailable=unavailable), ready, others, over=False) == kept


@pytest.mark.parametrize(
    ("replicas", "ready", "others", "kept"), [(2, 2, 0, 2), (2, 2, 1, 0), (1, 3, 0, 1), (0, 1, 0, 0)]
)
def test_of_one_that_was_taken_back_the_last_that_serve_stay(replicas: int, ready: int, others: int, kept: int) -> None:
    assert kept_pods(replicas, Rollout(), ready, others, over=True) == kept


def test_a_stable_pod_goes_when_one_of_the_canary_serves_in_its_place() -> None:
    assert [stable_pods(4, Rollout(), 2, ready, blocked=False) for ready in (0, 1, 2)] == [4, 3, 2]
    assert stable_pods(4, Rollout(), 2, 0, blocked=True) == 3, "as many may be missing as ever"
    assert stable_pods(1, Rollout(), 1, 1, blocked=False) == 1
    assert stable_pods(0, Rollout(), 0, 0, blocked=False) == 0
