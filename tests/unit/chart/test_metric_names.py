"""Rules and dashboards name metrics and labels that the components export."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from chart_support.queries import groupings_in, metrics_in, selectors_in

from dashboards.build import PAGES
from reference.metrics import COMPONENTS, metrics_of

RULES = Path(__file__).parents[3] / "charts" / "plimsoll" / "files" / "rules.yaml"
EXPORTED = {metric.name: set(metric.labels) for component in COMPONENTS for metric in metrics_of(component)}
OF_OTHERS: dict[str, set[str]] = {
    "up": set(),
    "ALERTS": {"alertname", "alertstate", "severity"},
    "process_start_time_seconds": set(),
    "process_cpu_seconds_total": set(),
    "process_resident_memory_bytes": set(),
}
"""Of Prometheus and of its client library."""
TARGET = {"namespace", "pod", "instance", "job"}
"""Labels of what Prometheus scrapes."""
KNOWN = EXPORTED | OF_OTHERS


def expressions() -> dict[str, str]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules = {
        f"{rule.get('alert') or rule.get('record')} {number}": rule["expr"]
        for group in groups
        for number, rule in enumerate(group["rules"])
    }
    panels = {
        f"{page.title} / {panel.title} {number}": query.expr
        for page in PAGES
        for row in page.rows
        for panel in row.panels
        for number, query in enumerate(panel.queries)
    }
    variables = {f"{page.title} ${variable.name}": variable.series for page in PAGES for variable in page.variables}
    return rules | panels | variables


USED = expressions()


def recorded(expression: str) -> str:
    """The expression without the metrics of recording rules, which promtool's tests cover."""
    return re.sub(r"plimsoll:\w+(:\w+)?(\{[^}]*\})?", "1", expression)


@pytest.mark.parametrize("name", USED)
def test_metrics_are_exported(name: str) -> None:
    assert metrics_in(recorded(USED[name])) - KNOWN.keys() == set()


@pytest.mark.parametrize("name", USED)
def test_labels_are_exported(name: str) -> None:
    expression = recorded(USED[name])
    for metric, labels in selectors_in(expression):
        assert labels - KNOWN.get(metric, labels) - TARGET == set(), metric
    labels = set().union(*(KNOWN.get(metric, set()) for metric in metrics_in(expression)))
    assert groupings_in(expression) - labels - TARGET - {"le"} == set()


def test_a_wrong_name_and_a_wrong_label_are_found() -> None:
    expression = 'sum by (modle) (rate(plimsoll_answerz_total{finish="stop", model="plimsoll_x"}[5m]))'
    assert metrics_in(expression) == {"plimsoll_answerz_total"}
    assert list(selectors_in(expression)) == [("plimsoll_answerz_total", {"finish", "model"})]
    assert groupings_in(expression) == {"modle"}
