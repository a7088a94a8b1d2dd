"""The notes after `helm install` have the real host, and what an uninstall keeps."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def notes(render: Render, tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    """`helm template` prints no notes: render them as a template in a copy of the chart."""
    chart = tmp_path / "plimsoll"
    shutil.copytree(ROOT / "charts" / "plimsoll", chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "notes")
    wrapped = '{"kind": "Notes", "text": {{ tpl (.Files.Get "notes") . | toJson }}}'
    (chart / "templates" / "notes.yaml").write_text(wrapped)

    def text(values: dict[str, Any]) -> str:
        (found,) = [item["text"] for item in render(values, chart) if item["kind"] == "Notes"]
        return str(found)

    return text


def test_defaults(notes: Callable[[dict[str, Any]], str]) -> None:
    text = notes({})
    assert "all namespaces" in text
    assert "port-forward service/pl-plimsoll-gateway 8080:80" in text
    assert "namespace: serving" in text
    assert "removes everything except the definitions of ModelDeployment, ModelHost, RuntimePool" in text
    names = [yaml.safe_load(crd.read_text())["metadata"]["name"] for crd in sorted((ROOT / "crds").glob("*.yaml"))]
    assert f"kubectl delete crd {' '.join(names)}\n" in text
    assert "WARNING: servedNames.rules is empty." in text
    assert "graceSeconds" not in text


def test_names_that_are_reserved(notes: Callable[[dict[str, Any]], str]) -> None:
    rules = [{"names": ["chat"], "namespaces": ["prod"]}]
    assert "WARNING" not in notes({"servedNames": {"rules": rules}})
    assert "WARNING: servedNames.graceSeconds is 0." in notes({"servedNames": {"rules": rules, "graceSeconds": 0}})


def test_with_an_ingress(notes: Callable[[dict[str, Any]], str]) -> None:
    ingress = {"enabled": True, "host": "ai.example.com", "tls": {"enabled": True}}
    text = notes({"ingress": ingress, "watchNamespaces": ["team-a"], "crds": {"keep": False}})
    assert "URL=https://ai.example.com\n" in text
    assert "port-forward" not in text
    assert "namespace: team-a" in text
    assert "also every ModelDeployment" in text


def test_with_several_hosts(notes: Callable[[dict[str, Any]], str]) -> None:
    hosts = [{"host": "*.example.org"}, {"host": "b.example.com"}]
    assert "URL=http://b.example.com\n" in notes({"ingress": {"enabled": True, "hosts": hosts}})


@pytest.mark.parametrize(
    ("hostnames", "url"),
    [
        (["*.example.org", "b.example.com"], "URL=http://b.example.com "),
        ([], "URL=http://$(kubectl -n serving get gateways.gateway.networking.k8s.io public -o jsonpath="),
    ],
)
def test_with_a_route(notes: Callable[[dict[str, Any]], str], hostnames: list[str], url: str) -> None:
    text = notes({"httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": hostnames}})
    assert url in text
    assert "port-forward" not in text


def test_without_a_host_the_address_is_looked_up(notes: Callable[[dict[str, Any]], str]) -> None:
    assert "get ingress pl-plimsoll-gateway" in notes({"ingress": {"enabled": True}})
