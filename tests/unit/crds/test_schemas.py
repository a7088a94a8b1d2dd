"""The CRDs: every field has a description and bounds, and parts that two kinds share are equal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

CRDS = Path(__file__).parents[3] / "crds"
NAMES = sorted(path.stem for path in CRDS.glob("*.yaml"))
WORDS = {"description", "message"}


def definition(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CRDS / f"{name}.yaml").read_text())["spec"]
    return found


def schema(name: str) -> dict[str, Any]:
    (version,) = definition(name)["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def fields(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every field below a schema, with its path."""
    for name, child in node.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from fields(child, f"{path}.{name}")
    for inner in (node.get("items"), node.get("additionalProperties")):
        if isinstance(inner, dict):
            yield f"{path}[]", inner
            yield from fields(inner, f"{path}[]")


def test_short_names_are_free_in_common_clusters() -> None:
    """`md` is Cluster API's MachineDeployment."""
    found = {name: definition(name)["names"]["shortNames"] for name in NAMES}
    assert found == {"modeldeployments": ["mdep"], "modelhosts": ["mh"], "runtimepools": ["rp"]}


@pytest.mark.parametrize("name", NAMES)
def test_delete_all_deletes_no_models(name: str) -> None:
    """`kubectl delete all` deletes every object of the category `all`."""
    assert definition(name)["names"]["categories"] == ["plimsoll"]


@pytest.mark.parametrize("name", NAMES)
def test_texts_of_any_length_are_columns_of_wide_tables_only(name: str) -> None:
    """A table without -o wide must fit a terminal."""
    (version,) = definition(name)["versions"]
    long = {"where", "why", "message", "names"}
    for column in version["additionalPrinterColumns"]:
        assert (column.get("priority", 0) == 1) == (column["jsonPath"].rpartition(".")[2] in long), column["name"]


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_described(name: str) -> None:
    bare = [path for path, node in fields(schema(name)) if "description" not in node and not path.endswith("[]")]
    assert bare == [".metadata"]


@pytest.mark.parametrize("name", NAMES)
def test_texts_lists_and_maps_are_bounded(name: str) -> None:
    for path, node in fields(schema(name)):
        kind = node.get("type")
        if kind == "string" and path not in (".apiVersion", ".kind"):
            assert {"maxLength", "enum", "format"} & node.keys(), f"{path} takes any text"
        if kind == "array":
            assert "maxItems" in node, f"{path} takes any number"
            assert "x-kubernetes-list-type" in node, f"two managers' {path} cannot be merged"
        if kind == "object" and "additionalProperties" in node:
            assert "maxProperties" in node, f"{path} takes any number"


@pytest.mark.parametrize("name", NAMES)
def test_there_are_no_floats(name: str) -> None:
    """Clients round them differently, and Kubernetes' API conventions exclude them. Fractions are text."""
    assert [path for path, node in fields(schema(name)) if node.get("type") == "number"] == []


@pytest.mark.parametrize("name", ["modeldeployments", "runtimepools"])
def test_numbers_that_people_write_are_bounded(name: str) -> None:
    for path, node in fields(schema(name)["properties"]["spec"]):
        if node.get("type") in ("integer", "number") and not path.endswith("tolerationSeconds"):
            assert {"minimum", "maximum"} <= node.keys() or "enum" in node, f"{path} takes any number"


def without_words(node: Any) -> Any:
    """Return a schema without its texts."""
    if isinstance(node, dict):
        return {key: without_words(value) for key, value in node.items() if key not in WORDS or isinstance(value, dict)}
    return [without_words(value) for value in node] if isinstance(node, list) else node


@pytest.mark.matrix(2)
@pytest.mark.parametrize("part", ["resources", "template", "rollout", "responses", "files"])
def test_pods_of_a_pool_are_described_as_those_of_a_model(part: str) -> None:
    of_model = without_words(schema("modeldeployments")["properties"]["spec"]["properties"][part])
    of_pool = without_words(schema("runtimepools")["properties"]["spec"]["properties"][part])
    if part == "resources":
        del of_model["default"]  # A pool must set the memory that its models share.
        of_model["properties"]["accelerator"]["properties"]["count"]["maximum"] = 1  # A pool's pod has one rank.
    if part == "rollout":
        del of_model["properties"]["canary"]  # Pools get no requests of their own.
    assert of_pool == of_model


def test_every_field_that_belongs_to_pods_is_refused_with_placement() -> None:
    """A new field of resources or template must be added to the rule."""
    spec = schema("modeldeployments")["properties"]["spec"]
    for part in ("resources", "template"):
        (rule,) = [r["rule"] for r in spec["x-kubernetes-validations"] if r.get("fieldPath") == f".{part}"]
        assert set(re.findall(rf"self\.{part}\.(\w+)", rule)) == set(spec["properties"][part]["properties"])


def test_a_modelhost_has_nothing_that_people_write() -> None:
    assert set(schema("modelhosts")["properties"]) == {"apiVersion", "kind", "metadata", "status"}
