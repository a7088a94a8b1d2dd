"""Plans the next action for an object's PodDisruptionBudget: a pure function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.spec.identity import Object, Owner, controller_of


@dataclass(frozen=True, slots=True)
class FoundBudget:
    """A budget with the expected name. `owner` is the uid of its controller, "" for none."""

    uid: str
    owner: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]


def read_budget(item: Object) -> FoundBudget:
    """Read a PodDisruptionBudget without its status, which changes with each pod."""
    meta = item["metadata"]
    owner = controller_of(item).get("uid", "")
    return FoundBudget(meta["uid"], owner, meta.get("labels") or {}, item.get("spec") or {})


@dataclass(frozen=True, slots=True)
class CreateBudget:
    """Create the budget."""

    budget: Object
    why: str


@dataclass(frozen=True, slots=True)
class ApplyBudget:
    """Write the wanted fields into our existing budget by server-side apply."""

    budget: Object
    why: str


@dataclass(frozen=True, slots=True)
class DeleteBudget:
    """Delete the budget with this uid."""

    uid: str
    why: str


BudgetAction = CreateBudget | ApplyBudget | DeleteBudget


def plan_budget(owner: Owner, found: FoundBudget | None, wanted: Object | None, *, serves: bool) -> BudgetAction | None:
    """Return the next action; None if there is none. A budget of this name with another owner stays as it is.

    No budget is created before a pod `serves`: it would protect nothing, because unready pods may always be evicted.
    """
    if found is None:
        return None if wanted is None or not serves else CreateBudget(wanted, "it is missing")
    if found.owner != owner.uid:
        return None
    if wanted is None:
        return DeleteBudget(found.uid, "it has no pods to protect")
    same = all(found.spec.get(name) == value for name, value in wanted["spec"].items())
    if same and wanted["metadata"]["labels"].items() <= found.labels.items():
        return None
    return ApplyBudget(wanted, "its spec or labels have changed")
