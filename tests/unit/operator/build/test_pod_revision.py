"""Which pods stay: an upgrade of Plimsoll replaces no pods without need."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

import pytest
from operator_support.objects import FULL, Json, model, spec_of

from plimsoll_operator.build import pod_revision as module
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.model import build_pod
from plimsoll_operator.build.pod_revision import Fit, fits, revision, user_part
from plimsoll_operator.spec.identity import HASH_LABEL
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.spec.runtime_pool import read_pool
from plimsoll_operator.spec.template import Template

IMAGE = Image("registry.example/plimsoll-runtime:0.1.0", allowed=("registry.example",))
OTHER = Image("registry.example/plimsoll-runtime:0.2.0")


def as_first_written(spec: Any) -> str:
    """Return the user's part of the hash, computed independently."""
    unseen = {"owner", "created", "generation", "replicas", "rollout", "history", "scaling"}
    unseen |= {"namespaces", "shared_claims"}
    said = {name: value for name, value in asdict(spec).items() if name not in unseen}
    default = asdict(Template())
    said["template"] = {name: value for name, value in said["template"].items() if value != default[name]}
    text = json.dumps(
        {name: value for name, value in said.items() if value not in (None, {})}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(text.encode()).hexdigest()[:10]


SHARED: Json = {"resources": {"memory": "2Gi"}, "memory": {"sleepers": "1Gi"}}
OF_POOLS: list[Json] = [
    SHARED,
    SHARED | {"memory": {"sleepers": "1Gi", "line": "70%"}},
    SHARED | {"template": FULL["template"]},
]


OF_MODELS: list[Json] = [
    {},
    FULL,
    {"model": {"source": "pvc://weights"}, "resources": {"memory": 8589934592}},
    {"model": {"source": "file:///srv/a model"}, "resources": {"cpu": 2}, "runtime": {"prefixCaching": True}},
    {"model": {"source": "hf://org/name", "revision": "v1.0"}, "template": {"tolerations": [{"operator": "Exists"}]}},
    {"runtime": {"chatTemplate": "\u00e9"}},
    {"model": {"source": "hf://org/private", "tokenSecret": {"name": "hub", "key": "token"}}},
]


@pytest.mark.parametrize("body", OF_MODELS)
def test_what_models_are_made_of_has_the_name_that_it_always_had(body: Json) -> None:
    spec = spec_of(**body)
    assert user_part(spec) == as_first_written(spec)


@pytest.mark.parametrize("body", OF_POOLS)
def test_what_pools_are_made_of_has_the_name_that_it_always_had(body: Json) -> None:
    spec = read_pool(model("p") | {"spec": body})
    assert user_part(spec) == as_first_written(spec)


PLAIN: Json = {**FULL, "template": {k: v for k, v in FULL["template"].items() if k != "image"}}
"""Every field except an own image."""


def fit(label: str, spec: Spec, image: Image = IMAGE) -> Fit:
    return fits(spec, image)(label)


def test_each_part_of_a_label_is_told_apart() -> None:
    spec, changed = spec_of(**PLAIN), spec_of(**{**PLAIN, "resources": {}})
    assert fit(revision(spec, IMAGE), spec) is Fit.CURRENT
    assert fit(revision(spec, OTHER), spec) is Fit.OUTDATED
    assert fit(revision(changed, IMAGE), spec) is Fit.OLDER
    assert fit("", spec) is Fit.OLDER
    label = build_pod(spec, IMAGE, "a")["metadata"]["labels"][HASH_LABEL]
    assert label == revision(spec, IMAGE)
    assert len(label) <= 63


def test_pods_without_a_fixed_user_are_of_another_installation() -> None:
    """Setting it rolls models through the upgrade queue; leaving it unset changes no pods."""
    spec, assigned = spec_of(**PLAIN), Image(IMAGE.reference, fixed_user=False)
    context = build_pod(spec, assigned, "a")["spec"]["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert fit(revision(spec, IMAGE), spec, assigned) is Fit.OUTDATED
    assert fit(revision(spec, assigned), spec, assigned) is Fit.CURRENT
    assert revision(spec_of(), IMAGE) == "fcf83afd28-cd626f8302-2", "the recorded label"


def test_a_model_with_an_image_of_its_own_is_rolled_by_no_upgrade() -> None:
    spec, allowed = spec_of(**FULL), ("registry.example",)
    before, after = (Image(image.reference, allowed=allowed) for image in (IMAGE, OTHER))
    assert fit(revision(spec, before), spec, after) is Fit.CURRENT


def test_an_operator_that_builds_otherwise_rolls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(**PLAIN)
    before = revision(spec, IMAGE)
    monkeypatch.setattr("plimsoll_operator.build.runtime_pod.CACHE", "/elsewhere")
    assert "/elsewhere" in str(build_pod(spec, IMAGE, "a"))
    assert fit(before, spec) is Fit.CURRENT


@pytest.mark.parametrize("body", OF_MODELS)
def test_an_operator_whose_pods_must_go_says_so(body: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(**body)
    label = revision(spec, IMAGE)
    monkeypatch.setattr(module, "OWN", module.OWN + 1)
    assert fit(label, spec) is Fit.OUTDATED


@pytest.mark.parametrize("empty", [{"template": {"labels": {}, "env": []}}, {"rollout": {"maxSurge": 3}}], ids=str)
def test_what_says_nothing_about_pods_is_no_part_of_it(empty: Json) -> None:
    assert revision(spec_of(**empty), IMAGE) == revision(spec_of(), IMAGE)


def test_objectives_replace_no_pods() -> None:
    image = Image("reg/rt:1")
    objectives = {"availability": "99.9%", "ttftMilliseconds": 800}
    plain, promised = spec_of(), spec_of(objectives=objectives)
    assert revision(plain, image) == revision(promised, image)
    assert build_pod(plain, image, "x", "0", 0) == build_pod(promised, image, "x", "0", 0)
