"""The alert rules of the chart, with all their times divided by a factor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from chart_support.helm import Object, render

MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION = re.compile(r"(\d+)(ms|[smhd])")
IN_EXPRESSION = re.compile(r"\[[0-9a-z:]+\]|\boffset \d+(?:ms|[smhd])")


def rendered_rules(limits: Mapping[str, Any]) -> Object:
    """Return the rules that the chart renders with these limits, as a rule file. Raises NoHelmError, RefusedError."""
    objects = render({"metrics": {"rules": {"enabled": True, "limits": dict(limits)}}})
    (rules,) = [item for item in objects if item["kind"] == "PrometheusRule"]
    return {"groups": rules["spec"]["groups"]}


def quickened(rules: Object, factor: int) -> Object:
    """Return a rule file whose windows, offsets and `for` are this many times as short."""

    def shorter(duration: re.Match[str]) -> str:
        return f"{int(duration[1]) * MILLISECONDS[duration[2]] // factor}ms"

    def expression(text: str) -> str:
        return IN_EXPRESSION.sub(lambda found: DURATION.sub(shorter, found[0]), text)

    def rule(old: Object) -> Object:
        new = old | {"expr": expression(old["expr"])}
        return new | {"for": DURATION.sub(shorter, old["for"])} if "for" in old else new

    return {"groups": [group | {"rules": [rule(each) for each in group["rules"]]} for group in rules["groups"]]}
