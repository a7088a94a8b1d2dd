"""Grafana's dashboards: generated, found by the sidecar, on one data source, with queries that Prometheus can parse."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chart_support.promtool import NoPromtoolError, find_promtool, promtool, write_yaml
from chart_support.queries import without_variables

from dashboards import build
from dashboards.page import Chart, Page, Panel, Row, Variable

Object = dict[str, Any]
Render = Callable[..., list[Object]]

FOLDER = Path(__file__).parents[3] / "charts" / "plimsoll" / "files" / "dashboards"
FILES = sorted(build.files())


def read(file: str) -> Object:
    return dict(json.loads((FOLDER / file).read_text(encoding="utf-8")))


def panels(dashboard: Object) -> list[Object]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: Object) -> Iterator[str]:
    for panel in panels(dashboard):
        yield from (target["expr"] for target in panel.get("targets", ()))


def test_the_files_are_those_of_the_pages() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")} == build.files()


@pytest.mark.parametrize("file", FILES)
def test_a_dashboard_uses_the_data_source_of_the_reader(file: str) -> None:
    dashboard = read(file)
    source = {"type": "prometheus", "uid": "${datasource}"}
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables.pop("datasource")["query"] == "prometheus"
    assert all(variable["datasource"] == source for variable in variables.values())
    shown = [panel for panel in panels(dashboard) if panel["type"] != "text"]
    assert all(panel["datasource"] == source for panel in shown)
    assert all(target["datasource"] == source for panel in shown for target in panel["targets"])


@pytest.mark.parametrize("file", FILES)
def test_queries_use_the_variables_that_the_dashboard_has(file: str) -> None:
    dashboard = read(file)
    names = {variable["name"] for variable in dashboard["templating"]["list"]} - {"datasource"}
    choices = (variable["query"] for variable in dashboard["templating"]["list"])
    text = " ".join([*queries(dashboard), *choices]).replace("$__rate_interval", "")
    assert {name for name in names if f"${name}" not in text} == set()
    assert text.count("$") == sum(text.count(f'"${name}"') for name in names)
    assert all("[5m]" not in query for query in queries(dashboard)), "use $__rate_interval"


@pytest.mark.parametrize("file", FILES)
def test_panels_have_their_own_places_and_ids(file: str) -> None:
    dashboard = read(file)
    shown = panels(dashboard)
    assert len({panel["id"] for panel in shown}) == len(shown)
    assert len({panel["title"] for panel in shown}) == len(shown)
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        cells |= taken


def test_prometheus_parses_every_query(tmp_path: Path) -> None:
    try:
        find_promtool()
    except NoPromtoolError as missing:
        pytest.skip(str(missing))
    series = [
        variable["query"].removeprefix("label_values(").rpartition(",")[0]
        for file in FILES
        for variable in read(file)["templating"]["list"]
        if variable["type"] == "query"
    ]
    expressions = [without_variables(query) for file in FILES for query in queries(read(file))]
    rules = [
        {"record": f"query:{number}", "expr": expression}
        for number, expression in enumerate(expressions + [without_variables(one) for one in series])
    ]
    file = write_yaml(tmp_path / "rules.yaml", {"groups": [{"name": "queries", "rules": rules}]})
    status, output = promtool("check", "rules", str(file))
    assert status == 0, output
    assert f"{len(rules)} rules found" in output


def test_the_sidecar_finds_each_dashboard(render: Render) -> None:
    values = {"enabled": True, "namespace": "grafana", "annotations": {"grafana_folder": "Serving"}}
    maps = [
        item
        for item in render({"metrics": {"dashboards": values}})
        if item["kind"] == "ConfigMap" and "grafana_dashboard" in item["metadata"]["labels"]
    ]
    assert [list(item["data"]) for item in maps] == [[file] for file in FILES]
    for item in maps:
        ((file, text),) = item["data"].items()
        assert json.loads(text) == read(file)
        assert item["metadata"]["namespace"] == "grafana"
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert item["metadata"]["annotations"] == {"grafana_folder": "Serving"}


def test_no_dashboards_by_default(render: Render) -> None:
    assert not [item for item in render({}) if "grafana_dashboard" in item["metadata"]["labels"]]


def test_a_note_is_text() -> None:
    note = Panel("Note", (), chart=Chart.NOTE, text="\nRead this.\n")
    page = Page("a", "A", "", (Variable("model", "up"),), (Row("R", (note,)),))
    built = json.loads(build.json_text(page))
    assert built["uid"] == "a"
    assert [panel["options"]["content"] for panel in panels(built)] == ["Read this."]
