"""Mistakes in `spec.parallel` that only a cluster or the model shows: the status names them, and nothing runs in
circles.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness import nodes
from harness.groups import live, wait_formed
from harness.kube import Kube, Object
from harness.sampling import sampled
from harness.settings import Settings
from harness.waiting import hold, until

MODEL = "group-input"
TOKEN = {"name": "group-token", "key": "token"}
NOTICED_WITHIN = 90
REFUSED = [
    ({"tensor": 8, "pods": 2}, "has 4 query heads"),
    ({"pipeline": 6, "pods": 2}, "has 4 layers"),
]


@pytest.fixture
def tiny(tiny: Object, settings: Settings) -> Object:
    """The tiny model in groups on a node that no scenario stops."""
    tiny["spec"]["template"] = nodes.staying(bool(settings.own_cluster))
    return tiny


def test_a_missing_token_is_named_and_the_group_starts_when_it_comes(kube: Kube, tiny: Object) -> None:
    tiny["spec"]["parallel"] = {"tensor": 2, "pods": 2, "tokenSecret": TOKEN}
    kube.apply(tiny)
    until(
        "a condition that names the Secret",
        lambda: any(_names_the_secret(c) for c in kube.conditions()[MODEL].values()),
        timeout=NOTICED_WITHIN,
        state=lambda: kube.describe(MODEL),
    )
    secret = {"metadata": {"name": TOKEN["name"]}, "stringData": {TOKEN["key"]: "a-token-of-this-group"}}
    kube.apply({"apiVersion": "v1", "kind": "Secret", **secret})
    wait_formed(kube, MODEL)


def _names_the_secret(condition: dict[str, Any]) -> bool:
    """Return whether a condition has the words of the kubelet."""
    return condition["status"] == "False" and f'secret "{TOKEN["name"]}" not found' in condition["message"]


@pytest.mark.parametrize(("parallel", "words"), REFUSED, ids=["tensor", "pipeline"])
def test_a_division_that_the_model_cannot_have_is_named(kube: Kube, tiny: Object, parallel: Object, words: str) -> None:
    """Its pods stay, and only their kubelets restart the containers."""
    name = f"{MODEL}-{next(iter(parallel))}"
    tiny["metadata"]["name"] = name
    tiny["spec"] |= {"parallel": parallel, "rollout": {"progressDeadlineSeconds": 20}}
    seen: set[str] = set()
    with sampled(lambda: seen.update(member.uid for member in live(kube, name))):
        kube.apply(tiny)
        stalled = kube.wait_condition(name, "Stalled", "True", timeout=NOTICED_WITHIN)
        assert words in stalled["message"], kube.describe(name)
        hold(20)
        assert words in kube.conditions()[name]["Stalled"]["message"], kube.describe(name)
    assert len(seen) == parallel["pods"], f"pods were replaced: {kube.events(name)}"
