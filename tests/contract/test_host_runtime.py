"""A pool's host understands all fields of a ModelDeployment's `spec.runtime`."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from plimsoll_runtime.residency.spec import MOST_THREADS, ModelSpec, engine_config, server_fields

CRD = next(Path(__file__).parents[2].glob("crds/*modeldeployment*.yaml"))
VALUES: dict[str, Any] = {"string": "1Gi", "integer": 16, "boolean": False}


@cache
def fields() -> dict[str, Any]:
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found: dict[str, Any] = schema["properties"]["spec"]["properties"]["runtime"]["properties"]
    return found


@pytest.mark.parametrize("field", sorted(fields().keys() - {"groupBackend"}))
def test_each_field_of_the_runtime_is_an_engines_or_the_servers(field: str) -> None:
    schema = fields()[field]
    value = schema["enum"][-1] if "enum" in schema else VALUES[schema["type"]]
    config = engine_config(ModelSpec(revision="1", source="x", runtime={field: value}))
    default = engine_config(ModelSpec(revision="1", source="x"))
    assert (config == default) is (field in server_fields())


def test_what_is_the_servers_is_in_the_schema() -> None:
    assert fields().keys() >= server_fields() - {"maxLogitBias"}, "only for users who place models on a host themselves"


def test_threads_have_the_schemas_bound() -> None:
    assert fields()["threads"]["maximum"] == MOST_THREADS
