"""The CRDs and docs/reference/options.json agree on names, types, values, limits and defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from plimsoll_runtime.utils.sizes import parse_size

ROOT = Path(__file__).parents[2]
OPTIONS: list[dict[str, Any]] = json.loads((ROOT / "docs" / "reference" / "options.json").read_text())["options"]
KINDS = {"deployment": "modeldeployments", "pool": "runtimepools"}
OF_A_CLUSTER = {"responses.claim", "files.claim"}
"""Fields that become paths on a volume."""


@cache
def schema(kind: str) -> dict[str, Any]:
    version = yaml.safe_load((ROOT / "crds" / f"{KINDS[kind]}.yaml").read_text())["spec"]["versions"][0]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def field(kind: str, path: str) -> dict[str, Any]:
    """Return the schema of a field; empty if there is none."""
    node = schema(kind)
    for name in path.split("."):
        node = node.get("properties", {}).get(name, {})
    return node


def declared(kind: str) -> dict[str, dict[str, Any]]:
    """Return the options by their path in the spec."""
    return {option[kind]: option for option in OPTIONS if kind in option}


def pairs() -> Iterator[Any]:
    for kind in KINDS:
        for path, option in declared(kind).items():
            if found := field(kind, path):
                yield pytest.param(option, found, id=f"{kind}.{path}")


PAIRS = list(pairs())


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_has_its_field(kind: str) -> None:
    """Add a missing field to the definition in crds/, and run `make chart`."""
    assert [path for path in declared(kind) if not field(kind, path)] == []


@pytest.mark.parametrize(
    ("kind", "parts"), [("deployment", ("runtime", "responses", "files")), ("pool", ("responses", "files", "memory"))]
)
def test_every_field_is_an_option(kind: str, parts: tuple[str, ...]) -> None:
    """Add a missing field to `deployment` or `pool` of its Option, and run `make reference`."""
    fields = {f"{part}.{name}" for part in parts for name in field(kind, part)["properties"]}
    assert fields - OF_A_CLUSTER - declared(kind).keys() == set()


@pytest.mark.parametrize(("option", "schema"), PAIRS)
def test_a_field_has_the_type_of_its_option(option: dict[str, Any], schema: dict[str, Any]) -> None:
    if option.get("repeats"):
        assert (schema["type"], schema["items"]["type"]) == ("array", option["type"])
    elif option.get("unit") == "bytes" and option["type"] == "integer":
        assert schema["x-kubernetes-int-or-string"]
    elif option.get("unit") == "share":
        assert schema["type"] == "string"
    else:
        assert schema["type"] == {"number": "integer"}.get(option["type"], option["type"])


@pytest.mark.parametrize(("option", "schema"), PAIRS)
def test_a_field_takes_what_its_option_takes(option: dict[str, Any], schema: dict[str, Any]) -> None:
    """The choices are equal; the limits of a cluster may be tighter, but no end may be open."""
    assert schema.get("enum") == option.get("choices")
    if schema.get("type") == "integer" and "enum" not in schema:
        assert schema["minimum"] >= option["minimum"]
        assert schema["maximum"] <= option.get("maximum", 2**31)


def value(text: str, option: dict[str, Any]) -> Any:
    """Return the value of a schema's default or of a word of its description; the text itself if it is not a value."""
    if text in ("On", "Off"):
        return text == "On"
    if text.endswith("%"):
        return parse_size(text, 100) / 100
    return parse_size(text, 0) if text.isdecimal() or option.get("unit") == "bytes" else text


@pytest.mark.parametrize(("option", "schema"), [pair for pair in PAIRS if "default" in pair.values[0]])
def test_a_field_has_the_default_of_its_option(option: dict[str, Any], schema: dict[str, Any]) -> None:
    """Includes the description, such as "30 when left out"."""
    described = re.findall(r"([A-Z0-9]\S*|(?<=\()\w+),? when left out", schema["description"])
    defaults = [*described, *([str(schema["default"])] if schema.get("default") else [])]
    assert [value(text, option) for text in defaults] == [option["default"]] * len(defaults)


def test_the_flag_of_a_runtime_field_is_its_name_with_hyphens() -> None:
    """The operator relies on this."""
    for path, option in declared("deployment").items():
        if path.startswith("runtime."):
            name = re.sub("-(.)", lambda letter: letter[1].upper(), option["flag"].removeprefix("--"))
            assert f"runtime.{name}" == path


def test_a_host_takes_all_that_a_deployment_may_set() -> None:
    of_a_process = {"runtime.drainSeconds", "runtime.groupBackend"}
    options = {path: option for path, option in declared("deployment").items() if path.startswith("runtime.")}
    assert all("host API" in option["where"] for path, option in options.items() if path not in of_a_process)
