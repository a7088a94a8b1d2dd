"""What to do about an object's disruption budget, and why: a pure function of what is there and what should be."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_operator.identity import Object, Owner, controller_of


@dataclass(frozen=True, slots=True)
class ApplyBudget:
    """Make the budget, or what it should be."""

    budget: Object
    why: str


@dataclass(frozen=True, slots=True)
class DeleteBudget:
    """Delete the budget with this uid."""

    uid: str
    why: str


BudgetAction = ApplyBudget | DeleteBudget


def plan_budget(owner: Owner, found: Object | None, wanted: Object | None) -> BudgetAction | None:
    """None when all is well, or somebody else's budget has the name: theirs then counts, and ours is not made."""
    if found is None:
        return None if wanted is None else ApplyBudget(wanted, "it is missing")
    if controller_of(found).get("uid") != owner.uid:
        return None
    if wanted is None:
        return DeleteBudget(found["metadata"]["uid"], "there is nothing for it to keep")
    labels = found["metadata"].get("labels") or {}
    same = all(found["spec"].get(name) == value for name, value in wanted["spec"].items())
    if same and wanted["metadata"]["labels"].items() <= labels.items():
        return None
    return ApplyBudget(wanted, "it is not as it should be")
