"""The disruption budget of an object's pods: how many replicas a drain of nodes must leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plimsoll_operator.spec.identity import KIND, Owner, selector_labels
from plimsoll_operator.spec.workload import Workload


@dataclass(frozen=True, slots=True)
class Budgets:
    """Whether any are made; `of_one`: of a single replica, too, as it is moved off a node that is being drained."""

    made: bool = True
    of_one: bool = True


def budget_name(owner: Owner) -> str:
    """A model and a pool of one name have a budget each."""
    return owner.key.name if owner.kind == KIND else f"pool-{owner.key.name}"


def build_budget(spec: Workload, uid: str | None, budgets: Budgets = Budgets()) -> dict[str, Any] | None:
    """None where there is nothing to keep, or where keeping it would hold up a drain for ever.

    A number, and not a share: nobody then has to find out how many replicas there should be. Pods that do not serve may
    always go. `uid` is the owner's where all pods carry it as a label.
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
            "minAvailable": least,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector_labels(spec.key.name, uid, spec.owner.kind)},
        },
    }
