"""Every option that a ModelDeployment may set is one that `plimsoll serve` takes, with the same bounds."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.cli.serve import server_config
from plimsoll_runtime.engine.config import ATTENTION_BACKENDS, DTYPES
from plimsoll_runtime.engine.policy import POLICIES
from plimsoll_runtime.engine.pooling import TASKS
from plimsoll_runtime.execution.attention.catalogue import ENTRIES

CRD = next(Path(__file__).parents[2].glob("crds/*modeldeployment*.yaml"))

SAMPLES = {
    "kvMemory": ["2GiB", "1.5MB", "512MiB", "40%", "100%", "0.5GiB"],
    "toolFormat": ["hermes", "qwen3_coder"],
    "reasoningFormat": ["think", "none"],
}


def options() -> dict[str, Any]:
    version = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["runtime"]
    found: dict[str, Any] = schema["properties"]
    return found


def flag(field: str) -> str:
    return "--" + re.sub(r"[A-Z]", lambda letter: f"-{letter[0].lower()}", field)


def values() -> Iterator[tuple[str, str]]:
    """Each option with every value of its enumeration, or the ends of its range, or samples of its pattern."""
    for field, schema in options().items():
        if schema["type"] == "boolean":
            continue
        samples = SAMPLES[field] if "pattern" in schema else []
        assert all(re.search(schema["pattern"], sample) for sample in samples)
        ends = [schema[end] for end in ("minimum", "maximum") if end in schema]
        for value in schema.get("enum") or samples or ends:
            yield flag(field), str(value)


@pytest.mark.parametrize(("option", "value"), list(values()))
def test_the_parser_takes_what_the_schema_allows(option: str, value: str) -> None:
    server_config(build_parser().parse_args(["serve", "m", option, value]))


@pytest.mark.parametrize("field", [field for field, schema in options().items() if schema["type"] == "boolean"])
def test_what_is_on_can_be_switched_off(field: str) -> None:
    server_config(build_parser().parse_args(["serve", "m", flag(field).replace("--", "--no-", 1)]))


def test_the_schema_knows_the_names_of_the_runtime() -> None:
    assert options()["dtype"]["enum"] == list(DTYPES)
    assert options()["policy"]["enum"] == list(POLICIES)
    assert options()["task"]["enum"] == list(TASKS)
    assert options()["attentionBackend"]["enum"] == list(ATTENTION_BACKENDS)
    assert ("auto", *ENTRIES) == ATTENTION_BACKENDS
