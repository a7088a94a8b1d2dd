"""When a disruption budget is created, changed, deleted and ignored."""

from __future__ import annotations

import copy

import pytest
from operator_support.objects import UID, Json, spec_of

from plimsoll_operator.build.disruption_budget import Budgets, build_budget
from plimsoll_operator.planning.disruption_budget import (
    ApplyBudget,
    CreateBudget,
    DeleteBudget,
    plan_budget,
    read_budget,
)
from plimsoll_operator.spec.identity import UID_LABEL, Object


def budget(replicas: int = 3) -> Json:
    """Return a budget as the API server does."""
    made = build_budget(spec_of(replicas=replicas))
    assert made is not None
    return made | {"metadata": made["metadata"] | {"uid": "budget-uid"}}


@pytest.mark.parametrize(
    ("replicas", "rollout", "least"),
    [
        (0, {}, None),
        (1, {}, 1),
        (1, {"maxUnavailable": 1}, None),
        (2, {}, 1),
        (3, {}, 2),
        (256, {}, 255),
        (4, {"maxUnavailable": "50%"}, 2),
        (4, {"maxUnavailable": 0}, 4),
    ],
)
def test_as_many_stay_as_must_serve(replicas: int, rollout: Json, least: int | None) -> None:
    made = build_budget(spec_of(replicas=replicas, rollout=rollout))
    assert (made and made["spec"]["minAvailable"]) == least


def test_none_where_they_are_not_wanted_or_would_hold_up_a_drain_for_ever() -> None:
    assert build_budget(spec_of(replicas=2), Budgets(made=False)) is None
    assert build_budget(spec_of(replicas=1), Budgets(of_one=False)) is None
    assert build_budget(spec_of(replicas=2), Budgets(of_one=False)) is not None


def test_it_selects_what_the_service_selects() -> None:
    assert budget()["spec"]["selector"]["matchLabels"][UID_LABEL] == UID


def planned(found: Object | None, wanted: Object | None, *, serves: bool = True) -> tuple[type, str] | None:
    action = plan_budget(spec_of().owner, None if found is None else read_budget(found), wanted, serves=serves)
    return None if action is None else (type(action), action.why)


def test_what_is_missing_is_made_and_what_is_wrong_put_right() -> None:
    wanted = budget()
    assert planned(None, wanted) == (CreateBudget, "it is missing")
    assert planned(copy.deepcopy(wanted), wanted) is None
    assert planned(budget(2), wanted) == (ApplyBudget, "its spec or labels have changed")
    unmarked = budget()
    del unmarked["spec"]["selector"]["matchLabels"][UID_LABEL]
    assert planned(unmarked, wanted) == (ApplyBudget, "its spec or labels have changed")
    bare = copy.deepcopy(wanted)
    bare["metadata"]["labels"].popitem()
    assert planned(bare, wanted) == (ApplyBudget, "its spec or labels have changed")


def test_none_is_made_before_there_is_anything_to_keep() -> None:
    assert planned(None, budget(), serves=False) is None
    assert planned(budget(2), budget(), serves=False) == (ApplyBudget, "its spec or labels have changed")


def test_what_is_not_wanted_goes() -> None:
    assert planned(None, None) is None
    assert plan_budget(spec_of().owner, read_budget(budget()), None, serves=True) == DeleteBudget(
        "budget-uid", "it has no pods to protect"
    )


def test_somebody_elses_is_left_alone() -> None:
    theirs = budget()
    theirs["metadata"]["ownerReferences"][0]["uid"] = "another"
    bare = copy.deepcopy(theirs)
    del bare["metadata"]["ownerReferences"]
    for found in (theirs, bare):
        assert planned(found, budget(2)) is None
        assert planned(found, None) is None
