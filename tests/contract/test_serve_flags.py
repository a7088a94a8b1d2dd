"""`plimsoll serve` has all options that a ModelDeployment may set, with the same limits."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.cli.serve import server_config
from plimsoll_runtime.engine.config import ATTENTION_BACKENDS, POLICIES
from plimsoll_runtime.engine.scheduler import policies
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.options import BatchOptions, ResponseBounds
from plimsoll_runtime.utils.option import options_of

CRD = next(Path(__file__).parents[2].glob("crds/*modeldeployment*.yaml"))

SAMPLES = {
    "kvMemory": ["2GiB", "1.5MB", "512MiB", "40%", "100%", "0.5GiB"],
    "toolFormat": ["hermes", "qwen3_coder"],
    "reasoningFormat": ["think", "none"],
}


AMOUNTS = ["1Gi", "0.5G", "1.5Ti", "512M", "1048576"]


@cache
def options(part: str = "runtime") -> dict[str, Any]:
    version = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][part]
    found: dict[str, Any] = schema["properties"]
    return found


def flag(field: str) -> str:
    return "--" + re.sub(r"[A-Z]", lambda letter: f"-{letter[0].lower()}", field)


def values() -> Iterator[tuple[str, str]]:
    """Yield each option with all values of its enumeration, the ends of its range, or samples of its pattern."""
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


def kept() -> Iterator[tuple[str, str]]:
    """Yield the options of stored responses and files in the same way."""
    for option in (*options_of(ResponseBounds), *options_of(BatchOptions)):
        if not option.deployment:
            continue
        part, _, field = option.deployment.partition(".")
        schema = options(part)[field]
        ends = [schema[end] for end in ("minimum", "maximum") if end in schema]
        samples = {"size": AMOUNTS, "tenantShare": ["1%", "100%"]}.get(field, ends)
        for value in samples:
            yield option.flag, str(value)


@pytest.mark.parametrize(("option", "value"), list(kept()))
def test_the_parser_takes_what_the_schema_allows_to_be_kept(option: str, value: str) -> None:
    server_config(build_parser().parse_args(["serve", "m", option, value, "--files-dir", "d"]))


def test_options_name_the_policies_and_backends_that_there_are() -> None:
    """The option's record imports neither."""
    assert tuple(policies.POLICIES) == POLICIES
    assert ("auto", *BACKENDS) == ATTENTION_BACKENDS
