"""The operator's rights on its Lease, read from the chart's template without Helm."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from operator_support.objects import Json

TEMPLATE = Path(__file__).parents[3] / "charts/plimsoll/templates/operator/rbac.yaml"
NAME = "plimsoll-operator"
"""Replaces every name that the template computes; tests/unit/chart compares those of a rendered chart."""


def lease_rules() -> list[Json]:
    """Return the rules of the Role in the release's namespace."""
    (role,) = [part for part in TEMPLATE.read_text().split("\n---\n") if "\nkind: Role\n" in f"\n{part}"]
    lines = [line for line in role.splitlines() if not re.fullmatch(r"\s*\{\{.*\}\}\s*", line)]
    document = yaml.safe_load(re.sub(r"\{\{[^}]*\}\}", NAME, "\n".join(lines)))
    rules: list[Json] = document["rules"]
    return rules


def lease_verbs() -> frozenset[str]:
    """Return the allowed verbs for the chart's Lease."""
    rules = [rule for rule in lease_rules() if rule["resources"] == ["leases"]]
    assert all(rule.get("resourceNames", [NAME]) == [NAME] for rule in rules)
    return frozenset(verb for rule in rules for verb in rule["verbs"])
