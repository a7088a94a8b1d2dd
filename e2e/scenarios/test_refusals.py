"""Invalid objects are rejected by the API server, or get a condition and an event; correcting them heals."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.dynamic.exceptions import DynamicApiError

from harness import nodes
from harness.kube import Kube, fresh_namespace
from harness.settings import Settings
from harness.waiting import until

MODEL = "refused"


@pytest.fixture(scope="module")
def kube() -> Iterator[Kube]:
    """One namespace for all tests, because most of these objects are never created."""
    with fresh_namespace() as kube:
        yield kube


REFUSED = [
    ({"replicas": -1}, "spec.replicas"),
    ({"replicas": "many"}, "spec.replicas"),
    ({"model": {}}, "spec.model.source"),
    ({"model": {"source": "ftp://somewhere/else"}}, "spec.model.source"),
    ({"model": {"source": "demo://gemma-3-270m", "revision": "main"}}, "revision"),
    ({"runtime": {"blockSize": 17}}, "blockSize"),
    ({"runtime": {"kvMemory": "lots"}}, "kvMemory"),
    ({"runtime": {"noSuchOption": 1}}, "noSuchOption"),
]


@pytest.mark.parametrize(("change", "named"), REFUSED, ids=[str(change) for change, _ in REFUSED])
def test_the_api_server_refuses(kube: Kube, demo: dict[str, Any], change: dict[str, Any], named: str) -> None:
    broken = copy.deepcopy(demo)
    broken["spec"].update(change)
    with pytest.raises(DynamicApiError, match=named):
        kube.apply(broken)


def test_a_wrong_source_is_named_and_fixing_it_heals(kube: Kube, tiny: dict[str, Any], settings: Settings) -> None:
    tiny["spec"]["template"] = nodes.staying(bool(settings.own_cluster))
    source = tiny["spec"]["model"]["source"]
    tiny["spec"]["model"]["source"] = source + "-that-is-not-there"
    kube.apply(tiny)
    loaded = until(
        "a reason for not loading",
        lambda: (c := kube.condition(MODEL, "Loaded")) and c["reason"] == "ModelSourceNotFound" and c,
        timeout=90,
        state=lambda: kube.describe(MODEL),
    )
    assert "that-is-not-there" in loaded["message"]
    until(
        "a warning that names it",
        lambda: any(kind == "Warning" and "that-is-not-there" in text for kind, _, text in kube.events(MODEL)),
        timeout=30,
        state=lambda: kube.describe(MODEL),
    )
    tiny["spec"]["model"]["source"] = source
    kube.apply(tiny)
    kube.wait_condition(MODEL, "Ready", "True")
    kube.wait_settled(MODEL, 1)
