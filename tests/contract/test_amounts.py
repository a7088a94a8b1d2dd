"""Schema, operator, runtime and Kubernetes parse an amount of `kvMemory` to the same number of bytes."""

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from plimsoll_operator.spec.quantity import byte_count
from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.cli.serve import server_config
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.sizes import is_share, parse_size

CRD = next(Path(__file__).parents[2].glob("crds/*modeldeployment*.yaml"))
FREE = 10**12
EXACT = 10**27
"""From here on the Kubernetes client library rounds."""


@cache
def schema() -> dict[str, Any]:
    spec = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    found: dict[str, Any] = spec["properties"]["runtime"]["properties"]["kvMemory"]
    return found


def pattern() -> str:
    found = re.search(r"matches\('\^(.*)\$'\)", schema()["x-kubernetes-validations"][0]["rule"])
    assert found is not None
    return found[1]


ALLOWED = st.from_regex(pattern(), fullmatch=True, alphabet=st.characters(codec="ascii")).filter(
    lambda text: len(text) <= schema()["maxLength"]
)


@settings(deadline=None)  # the first parser is built with all its imports
@given(ALLOWED)
def test_what_the_schema_allows_means_the_same_to_all(text: str) -> None:
    config = server_config(build_parser().parse_args(["serve", "m", "--kv-memory", text]))
    assert config.engine.kv_memory == text
    taken = parse_size(text, FREE)
    if is_share(text):
        assert 0 <= taken <= FREE
        return
    assert taken == byte_count(text)
    if not text.endswith("B") and taken < EXACT:
        assert taken == math.floor(parse_quantity(text))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1Gi", 2**30),
        ("512Mi", 512 * 2**20),
        ("1.5Ti", 3 * 2**39),
        ("1500M", 1_500_000_000),
        ("64000k", 64_000_000),
        ("1e9", 10**9),
        ("1.5E+9", 1_500_000_000),
        ("1073741824", 2**30),
        ("1GiB", 2**30),
        ("2GB", 2 * 10**9),
        ("40%", 4 * 10**11),
    ],
)
def test_the_forms_that_people_write(text: str, size: int) -> None:
    assert re.fullmatch(pattern(), text)
    assert parse_size(text, FREE) == size
    assert is_share(text) or byte_count(text) == size


@pytest.mark.parametrize(
    "text", ["0", "0Gi", "0.5", "1m", "1gi", "1K", "-1Gi", "1e-3", "1e3Gi", "Gi", "1 Gi x", "", "0%", "1TB"]
)
def test_what_is_none_is_refused_by_schema_and_runtime(text: str) -> None:
    assert re.fullmatch(pattern(), text) is None
    with pytest.raises(UsageError, match="write it like"):
        parse_size(text, FREE)
