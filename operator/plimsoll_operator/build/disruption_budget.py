"""Builds the PodDisruptionBudget for the pods of a ModelDeployment or RuntimePool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plimsoll_operator.spec.identity import KIND, Owner, selector_labels
from plimsoll_operator.spec.workload import Workload


@dataclass(frozen=True, slots=True)
class Budgets:
    """`made`: whether PodDisruptionBudgets are created. `of_one`: whether objects with one replica get one too, which
    blocks node drains unless the operator watches nodes and replaces the pods on a cordoned node.
    """

    made: bool = True
    of_one: bool = True


def budget_name(owner: Owner) -> str:
    """Return the name of the budget, different for a model and a pool of the same name."""
    return owner.key.name if owner.kind == KIND else f"pool-{owner.key.name}"


def build_budget(spec: Workload, budgets: Budgets = Budgets()) -> dict[str, Any] | None:
    """Build the budget; None if budgets are switched off, or if it would protect nothing or block node drains forever.

    `minAvailable` is a number, so that the cluster need not look up the number of replicas. Unready pods may always be
    evicted. Each eviction may hit another group, because the other pods of a group that lost one stay ready for some
    seconds: so as many evictions are allowed at a time as replicas may be missing.
    """
    least = spec.replicas - spec.rollout.unavailable(spec.replicas)
    if least < 1 or not budgets.made or (spec.replicas == 1 and not budgets.of_one):
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": budget_name(spec.owner),
            "namespace": spec.key.namespace,
            "labels": selector_labels(spec.key.name, kind=spec.owner.kind),
            "ownerReferences": [spec.owner.reference()],
        },
        "spec": {
            "minAvailable": spec.replicas * spec.pods_per_replica - (spec.replicas - least),
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector_labels(spec.key.name, spec.owner.uid, spec.owner.kind)},
        },
    }
