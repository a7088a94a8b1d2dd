"""The chart's Ingress and HTTPRoute route all paths of the docs to the gateway, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from chart_support.helm import NoHelmError, find_helm, render

from plimsoll_gateway.pages.own_paths import PROBES
from plimsoll_runtime.api.openapi.gateway_pages import gateway_document

DOCS = Path(__file__).parents[2] / "docs" / "operations" / "gateway.md"
INSIDE = PROBES | {"/demand"}
"""For kubelets, Prometheus and the operator only."""


ROOT = "/"
"""A page for people. An Ingress leaves / to other services of its host."""


def listed(text: str) -> set[str]:
    """Return the paths in the first column of the table in docs/operations/gateway.md."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {path for row in rows for path in re.findall(r"(?<![.\w])/[a-z][\w/.-]*", row)}


def leads(prefix: str, path: str) -> bool:
    """Return whether a path is below a prefix, as Ingress and HTTPRoute compare them: by path elements."""
    return path == prefix or path.startswith(f"{prefix}/")


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    try:
        find_helm()
    except NoHelmError as missing:
        pytest.skip(str(missing))
    found = render({"ingress": {"enabled": True}, "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]}})
    return {item["kind"]: item["spec"] for item in found if item["kind"] in ("Ingress", "HTTPRoute")}


def ingress_paths(objects: dict[str, Any]) -> list[str]:
    (rule,) = objects["Ingress"]["rules"]
    assert {path["pathType"] for path in rule["http"]["paths"]} == {"Prefix"}
    return [path["path"] for path in rule["http"]["paths"]]


def route_paths(objects: dict[str, Any]) -> list[str]:
    (rule,) = objects["HTTPRoute"]["rules"]
    assert {match["path"]["type"] for match in rule["matches"]} == {"PathPrefix"}
    return [match["path"]["value"] for match in rule["matches"]]


@pytest.mark.parametrize("paths_of", [ingress_paths, route_paths])
def test_every_path_of_the_docs_leads_to_the_gateway(objects: dict[str, Any], paths_of: Any) -> None:
    table = listed(DOCS.read_text())
    assert table >= INSIDE | {"/v2/rerank", "/docs", "/openapi.json", "/v1/models"}, "the table was parsed"
    documented = set(gateway_document()["paths"]) - {ROOT}
    assert {path for path in documented - table if "{" not in path} == set()
    outside = (table | documented) - INSIDE
    paths = paths_of(objects)
    assert {path for path in outside if not any(leads(prefix, path) for prefix in paths)} == set()
    assert {prefix for prefix in paths if not any(leads(prefix, path) for path in outside)} == set()
    assert {path for path in INSIDE if any(leads(prefix, path) for prefix in paths)} == set()
