"""What to do about an object's disruption budget, and why: a pure function of what is there and what should be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.spec.identity import Object, Owner, controller_of


@dataclass(frozen=True, slots=True)
class FoundBudget:
    """A budget, whoever's it is; `owner` is the uid of what manages it, "" for nothing."""

    uid: str
    owner: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]


def read_budget(item: Object) -> FoundBudget:
    """What is kept of a PodDisruptionBudget: not its status, which changes with each pod."""
    meta = item["metadata"]
    owner = controller_of(item).get("uid", "")
    return FoundBudget(meta["uid"], owner, meta.get("labels") or {}, item.get("spec") or {})


@dataclass(frozen=True, slots=True)
class CreateBudget:
    """Make the budget: none is known."""

    budget: Object
    why: str


@dataclass(frozen=True, slots=True)
class ApplyBudget:
    """Make of our budget what it should be."""

    budget: Object
    why: str


@dataclass(frozen=True, slots=True)
class DeleteBudget:
    """Delete the budget with this uid."""

    uid: str
    why: str


BudgetAction = CreateBudget | ApplyBudget | DeleteBudget


def plan_budget(owner: Owner, found: FoundBudget | None, wanted: Object | None, *, serves: bool) -> BudgetAction | None:
    """None when all is well, or somebody else's budget has the name: theirs then counts, and ours is not made.

    None is made before a pod `serves`: until then it would keep nothing, as pods that do not serve may always go.
    """
    if found is None:
        return None if wanted is None or not serves else CreateBudget(wanted, "it is missing")
    if found.owner != owner.uid:
        return None
    if wanted is None:
        return DeleteBudget(found.uid, "there is nothing for it to keep")
    same = all(found.spec.get(name) == value for name, value in wanted["spec"].items())
    if same and wanted["metadata"]["labels"].items() <= found.labels.items():
        return None
    return ApplyBudget(wanted, "it is not as it should be")
