"""What a PromQL expression names: metrics, and the labels that it expects of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

METRIC = re.compile(r"\b(?:plimsoll|process)_[a-z0-9_]+|\bALERTS\b|\bup\b")
SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
STRING = re.compile(r'"[^"]*"')
SERIES = re.compile(r"_(bucket|sum|count)$")
VARIABLE = re.compile(r"\$__rate_interval|\$\w+")


def metrics_in(expression: str) -> set[str]:
    """Return the names of the metrics in an expression; a histogram's without `_bucket`, `_sum` and `_count`."""
    return {SERIES.sub("", name) for name in METRIC.findall(STRING.sub("", expression))}


def selectors_in(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each metric that has a selector, with the labels in that."""
    for name, matchers in SELECTOR.findall(expression):
        yield SERIES.sub("", name), set(MATCHER.findall(matchers))


def groupings_in(expression: str) -> set[str]:
    """Return the labels by which an expression groups or joins."""
    return {label.strip() for labels in GROUPING.findall(expression) for label in labels.split(",") if label.strip()}


def without_variables(expression: str) -> str:
    """Return the expression with values in place of Grafana's variables."""
    return VARIABLE.sub(lambda found: "5m" if "rate_interval" in found[0] else ".*", expression)
