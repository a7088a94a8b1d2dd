"""Prometheus' rules of the chart: promtool accepts them, each alert fires, stays quiet and ends as its cases say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_support.promtool import NoPromtoolError, find_promtool, promtool, unit_tests, write_yaml

Object = dict[str, Any]
Render = Callable[..., list[Object]]

REPO = Path(__file__).parents[3]
RULES = REPO / "charts" / "plimsoll" / "files" / "rules.yaml"
CASES = Path(__file__).parent / "alerts"
RUNBOOKS = REPO / "docs" / "operations" / "runbooks"
ALERTS = sorted(set(re.findall(r"alert: (\w+)", RULES.read_text(encoding="utf-8"))))
LABELS = re.compile(r"\$labels\.(\w+)")
SECTIONS = ("## Meaning", "## Find the cause", "## What to do")


def cases_of(alert: str) -> list[Object]:
    return list(yaml.safe_load((CASES / f"{alert}.yaml").read_text(encoding="utf-8")))


def rendered(render: Render, **values: Any) -> Object:
    (rules,) = [
        item for item in render({"metrics": {"rules": {"enabled": True, **values}}}) if item["kind"] == "PrometheusRule"
    ]
    return dict(rules)


def alerts_in(rules: Object) -> list[Object]:
    return [rule for group in rules["spec"]["groups"] for rule in group["rules"] if "alert" in rule]


@pytest.fixture(scope="module")
def rules(render: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the rules that the chart renders."""
    try:
        find_promtool()
    except NoPromtoolError as missing:
        pytest.skip(str(missing))
    content = {"groups": rendered(render)["spec"]["groups"]}
    return write_yaml(tmp_path_factory.mktemp("rules") / "rules.yaml", content)


def test_promtool_accepts_the_rules(rules: Path) -> None:
    status, output = promtool("check", "rules", str(rules))
    assert status == 0, output


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_stays_quiet_and_ends(rules: Path, tmp_path: Path, alert: str) -> None:
    cases = unit_tests(rules, alert, cases_of(alert))
    status, output = promtool("test", "rules", str(write_yaml(tmp_path / "test.yaml", cases)))
    assert status == 0, output


def test_a_wrong_expectation_is_found(rules: Path, tmp_path: Path) -> None:
    case = {"name": "no case", "series": {"up": "1"}, "firing": {"5m": [{"severity": "critical"}]}}
    cases = unit_tests(rules, "PlimsollOperatorLeaderless", [case])
    assert promtool("test", "rules", str(write_yaml(tmp_path / "test.yaml", cases)))[0] != 0


@pytest.mark.parametrize("alert", ALERTS)
def test_the_cases_of_an_alert_are_complete(alert: str) -> None:
    """One case fires and ends, one never fires."""
    firing = [list(case["firing"].values()) for case in cases_of(alert)]
    assert any(times[-1] == [] and any(times) for times in firing)
    assert any(not any(times) for times in firing)


def test_cases_and_runbooks_belong_to_alerts() -> None:
    assert sorted(path.stem for path in CASES.glob("*.yaml")) == ALERTS
    assert sorted(path.stem for path in RUNBOOKS.glob("*.md") if path.stem != "README") == ALERTS


@pytest.mark.parametrize("alert", ALERTS)
def test_a_runbook_is_complete(alert: str) -> None:
    page = (RUNBOOKS / f"{alert}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {alert}\n")
    assert [line for line in page.splitlines() if line.startswith("## ")] == list(SECTIONS)
    assert "```console" in page
    assert f"]({alert}.md)" in (RUNBOOKS / "README.md").read_text(encoding="utf-8")


def test_an_alert_says_what_who_is_on_call_needs(render: Render) -> None:
    """Texts name only labels that the alert has."""
    for rule in alerts_in(rendered(render)):
        fired = next(labels for case in cases_of(rule["alert"]) for labels in case["firing"].values() if labels)
        texts = rule["annotations"]
        assert texts.keys() == {"summary", "description", "runbook_url"}, rule["alert"]
        assert set(LABELS.findall(texts["summary"] + texts["description"])) <= fired[0].keys(), rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["for"]


def test_limits_of_the_rules_are_values_and_are_used(render: Render) -> None:
    values = yaml.safe_load((REPO / "charts/plimsoll/values.yaml").read_text(encoding="utf-8"))["metrics"]["rules"]
    used = set(re.findall(r"\$\{(\w+)\}", RULES.read_text(encoding="utf-8").partition("groups:")[2]))
    assert used == values["limits"].keys()
    assert "${" not in yaml.safe_dump(rendered(render))


def test_values_change_the_rules(render: Render) -> None:
    rules = rendered(
        render,
        limits={"kvUsage": 0.5, "replicasMissing": "1h"},
        disabled=["PlimsollDrainStuck"],
        runbookUrl="https://wiki.example.com/runbooks/",
        labels={"release": "prometheus"},
    )
    alerts = {rule["alert"]: rule for rule in alerts_in(rules)}
    assert "plimsoll_kv_usage_ratio[5m]) > 0.5" in alerts["PlimsollKvExhausted"]["expr"]
    assert alerts["PlimsollReplicasMissing"]["for"] == "1h"
    assert alerts.keys() == set(ALERTS) - {"PlimsollDrainStuck"}
    url = "https://wiki.example.com/runbooks/PlimsollKvExhausted.md"
    assert alerts["PlimsollKvExhausted"]["annotations"]["runbook_url"] == url
    assert rules["metadata"]["labels"]["release"] == "prometheus"


def test_no_rules_by_default(render: Render) -> None:
    assert not [item for item in render({}) if item["kind"] == "PrometheusRule"]
