"""What the chart lets the operator do with its Lease, read from the template itself: no Helm is needed."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from operator_support.objects import Json

TEMPLATE = Path(__file__).parents[3] / "charts/plimsoll/templates/operator/rbac.yaml"
NAME = "plimsoll-operator"
"""What stands for every name that the template computes; a rendered chart's are compared in tests/unit/chart."""


def lease_rules() -> list[Json]:
    """The rules of the Role in the release's namespace."""
    (role,) = [part for part in TEMPLATE.read_text().split("\n---\n") if "\nkind: Role\n" in f"\n{part}"]
    lines = [line for line in role.splitlines() if not re.fullmatch(r"\s*\{\{.*\}\}\s*", line)]
    document = yaml.safe_load(re.sub(r"\{\{[^}]*\}\}", NAME, "\n".join(lines)))
    rules: list[Json] = document["rules"]
    return rules


def lease_verbs() -> frozenset[str]:
    """What may be done with the Lease of the chart's name."""
    rules = [rule for rule in lease_rules() if rule["resources"] == ["leases"]]
    assert all(rule.get("resourceNames", [NAME]) == [NAME] for rule in rules)
    return frozenset(verb for rule in rules for verb in rule["verbs"])
