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
    (text,) = re.findall(r"printf `(.*?)`", TEMPLATE.read_text(), re.DOTALL)
    rules: list[Json] = yaml.safe_load(text.replace("%s", NAME))
    return rules


def lease_verbs() -> frozenset[str]:
    """Return the allowed verbs for the chart's Lease."""
    rules = [rule for rule in lease_rules() if rule["resources"] == ["leases"]]
    assert all(rule.get("resourceNames", [NAME]) == [NAME] for rule in rules)
    return frozenset(verb for rule in rules for verb in rule["verbs"])
