"""Reading specs that the CRD schema accepts: all are understood, and those that cannot be served are rejected."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from operator_support.objects import FULL, model, spec_of

from plimsoll_operator.spec.model_deployment import read_spec, served_names
from plimsoll_operator.spec.quantity import byte_count
from plimsoll_operator.spec.template import SCHEDULING, Accelerator, SpecError

CRD = next(Path(__file__).parents[4].glob("crds/*modeldeployment*.yaml"))


def rule_of(*path: str) -> str:
    """Return the regular expression of a field's first rule in the schema."""
    at = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for name in path:
        at = at["properties"][name]
    found = re.search(r"matches\('(.*)'\)", at["x-kubernetes-validations"][0]["rule"])
    assert found is not None
    return found[1].removesuffix("$") + r"\Z"


MEMORY, KV_MEMORY = rule_of("resources", "memory"), rule_of("runtime", "kvMemory")
memory = st.from_regex(MEMORY, alphabet=st.characters(codec="ascii")).filter(lambda text: len(text) <= 32)
kv_memory = st.from_regex(KV_MEMORY, alphabet=st.characters(codec="ascii")).filter(lambda text: len(text) <= 32)


def test_a_full_spec_is_read_whole() -> None:
    spec = spec_of(**FULL)
    assert str(spec.key) == "team/gemma"
    assert (spec.source, spec.revision) == ("pvc://weights/llama/8b", None)
    assert spec.served_names == ("llama", "org/llama-3:8b")
    assert (spec.replicas, spec.cpu, spec.memory) == (3, "500m", "16Gi")
    assert spec.accelerator == Accelerator("nvidia.com/gpu", 1)
    assert spec.options == FULL["runtime"]
    assert spec.drain_seconds == 7
    assert spec.template.scheduling.keys() == set(SCHEDULING)
    assert spec.template.service_account == "reader"


def test_what_is_left_out_has_its_default() -> None:
    item = model()
    item["spec"] = {"model": {"source": "demo://x"}}
    spec = read_spec(item)
    assert (spec.replicas, spec.served_names, spec.drain_seconds) == (1, ("gemma",), 30)
    assert (spec.cpu, spec.memory, spec.accelerator) == (None, None, None)


def test_a_number_of_bytes_is_a_quantity_too() -> None:
    spec = spec_of(resources={"cpu": 2, "memory": 1 << 30})
    assert (spec.cpu, spec.memory) == ("2", "1073741824")


@pytest.mark.parametrize("names", [None, []])
def test_an_object_without_names_serves_its_own(names: Any) -> None:
    assert served_names(model(model={"source": "demo://x", "servedNames": names})) == ("gemma",)


@pytest.mark.parametrize(
    ("kv", "total", "fits"),
    [
        ("2GiB", "8Gi", True),
        ("2Gi", "8Gi", True),
        ("8Gi", "8Gi", False),
        ("8G", "8Gi", True),
        ("9e9", "8Gi", False),
        ("8589934591", "8Gi", True),
        ("8GiB", "8Gi", False),
        ("9GB", "8Gi", False),
        ("8GB", "8Gi", True),
        ("1GiB", 1 << 30, False),
        ("1GiB", (1 << 30) + 1, True),
        ("100%", "64Mi", True),
        ("1TiB", None, True),
    ],
)
def test_the_cache_must_leave_room_for_the_weights(kv: str, total: str | int | None, fits: bool) -> None:
    resources = {} if total is None else {"memory": total}
    if fits:
        spec_of(runtime={"kvMemory": kv}, resources=resources)
        return
    with pytest.raises(SpecError, match=rf"kvMemory {kv}.*memory {total}.*(lower|raise)"):
        spec_of(runtime={"kvMemory": kv}, resources=resources)


def test_the_cache_of_an_accelerator_is_not_in_the_pods_memory() -> None:
    spec_of(runtime={"kvMemory": "40GiB"}, resources={"memory": "8Gi", "accelerator": {"resource": "amd.com/gpu"}})


@given(memory, kv_memory)
def test_every_amount_that_the_schema_allows_is_understood(total: str, kv: str) -> None:
    assert byte_count(total) > 0
    try:
        spec_of(runtime={"kvMemory": kv}, resources={"memory": total})
    except SpecError:
        assert byte_count(kv) >= byte_count(total)
    else:
        assert kv.endswith("%") or byte_count(kv) < byte_count(total)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("17", 17),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1.5Gi", int(Decimal("1.5") * 1024**3)),
        ("2GB", 2 * 1000**3),
        ("2GiB", 2 * 1024**3),
        ("3T", 3 * 1000**4),
        ("1e3", 1000),
        ("1.5E+9", 1_500_000_000),
        ("0.0019Ki", 1),
    ],
)
def test_amounts(text: str, amount: int) -> None:
    assert byte_count(text) == amount


@pytest.mark.parametrize("text", ["", "Gi", "-1Gi", "1 Gi", "1GI", "lots", "1e", "1e-3", "1e3Gi", "1Gi\n", "40%"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 8Gi"):
        byte_count(text)
