"""A RuntimePool's process on a laptop gets the options that the operator gives a pod of that pool."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from plimsoll_operator.build.host import host_arguments
from plimsoll_operator.spec.runtime_pool import read_pool
from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.local.model import load_objects
from plimsoll_runtime.local.pool import read_pools

SPECS: list[dict[str, Any]] = [
    {"resources": {"memory": "6Gi"}},
    {"resources": {"memory": "9G"}, "memory": {"line": "61%", "sleepers": "1500M"}},
    {"resources": {"memory": "8Gi"}, "eviction": {"minimumResidencySeconds": 77}},
]


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_options(spec: dict[str, Any]) -> None:
    body = {"apiVersion": "plimsoll.dev/v1alpha1", "kind": "RuntimePool", "metadata": {"name": "p"}, "spec": spec}
    _, others = load_objects(["-"], io.StringIO(json.dumps(body)))
    (pool,) = read_pools(others, 2**40)
    admitted = {**others[0].body, "metadata": {"name": "p", "namespace": "default", "uid": "u", "generation": 1}}
    parse = build_parser().parse_args
    ours, theirs = parse(["host", *pool.arguments]), parse(host_arguments(read_pool(admitted)))
    assert (ours.sleepers, ours.minimum_residency) == (theirs.sleepers, theirs.minimum_residency)
    assert (ours.service_slice, ours.patience) == (theirs.service_slice, theirs.patience)
    memory = {"6Gi": 6 * 2**30, "9G": 9 * 10**9, "8Gi": 8 * 2**30}[spec["resources"]["memory"]]
    share = int(theirs.line.removesuffix("%")) / 100
    assert int(ours.line) == pytest.approx(share * (memory - theirs.sleepers), abs=1)
