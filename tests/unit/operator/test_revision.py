"""Which pods go on as they are: an upgrade of Plimsoll replaces none that need not go, not even those of 0.1.0."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

import pytest
from operator_support.adopted import IMAGE, RECORDED
from operator_support.objects import EPOCH, FULL, UID, Json, model, spec_of, stamp

from plimsoll_operator.build import revision as module
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.pod import build_pod
from plimsoll_operator.build.revision import Fit, fits, revision, user_part
from plimsoll_operator.identity import HASH_LABEL, Owner
from plimsoll_operator.observe import Observed, Pod, ServiceState, observe_pods, read_pod
from plimsoll_operator.plan import Plan, plan
from plimsoll_operator.pools.spec import read_pool
from plimsoll_operator.spec import Spec, read_spec
from plimsoll_operator.template import Template
from plimsoll_operator.view import view

OTHER = Image("registry.example/plimsoll-runtime:0.2.0")


def running(pod: Json, replicas: int) -> tuple[Pod, ...]:
    """That many of it, as the API server shows them."""
    owner = Owner(spec_of("m").key, UID).reference()
    metadata = {**pod["metadata"], "creationTimestamp": stamp(EPOCH), "ownerReferences": [owner]}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    items = [
        {**pod, "spec": {**pod["spec"], "nodeName": "n1"}, "status": status}
        | {"metadata": {**metadata, "name": f"m-{number}", "uid": f"uid-{number}"}}
        for number in range(replicas)
    ]
    return observe_pods(map(read_pod, items), EPOCH)


def spec_like(recorded: Json, **changes: Any) -> Spec:
    return read_spec(model("m", **{**recorded, **changes}))


@pytest.mark.parametrize("case", RECORDED)
def test_an_upgrade_from_0_1_0_replaces_no_pod(case: str) -> None:
    recorded = RECORDED[case]
    spec = spec_like(recorded.spec)
    pods = running(recorded.pod, spec.replicas)
    seen = view(spec, fits(spec, IMAGE), Observed(pods, ServiceState.OURS, EPOCH))
    assert len(seen.current) == spec.replicas
    assert plan(seen) == Plan(())


@pytest.mark.parametrize("case", RECORDED)
def test_with_another_image_its_pods_wait_for_their_turn(case: str) -> None:
    recorded = RECORDED[case]
    spec = spec_like(recorded.spec)
    observed = Observed(running(recorded.pod, spec.replicas), ServiceState.OURS, EPOCH)
    assert view(spec, fits(spec, OTHER), observed).needs_turn
    waiting = view(spec, fits(spec, OTHER), observed, may_roll=False)
    assert (len(waiting.held), plan(waiting)) == (spec.replicas, Plan(()))


CHANGES: dict[str, Json] = {
    "known then": {"runtime": {"drainSeconds": 99}},
    "new since": {"template": {"startupDeadlineSeconds": 60}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_spec_rolls_them_as_ever(change: str) -> None:
    spec = spec_like(RECORDED["least"].spec, **CHANGES[change])
    seen = view(spec, fits(spec, IMAGE), Observed(running(RECORDED["least"].pod, 1), ServiceState.OURS, EPOCH))
    assert len(seen.older) == 1
    assert not seen.needs_turn, "the user asked for it"


def as_first_written(spec: Any) -> str:
    """The user's part as the first operator that stored it computed it: pods and revisions carry it."""
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
    *(case.spec for case in RECORDED.values()),
    FULL,
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
"""Every field, but no image of its own."""


def fit(label: str, spec: Spec, image: Image = IMAGE) -> Fit:
    return fits(spec, image)(label, image)


def test_each_part_of_a_label_is_told_apart() -> None:
    spec, changed = spec_of(**PLAIN), spec_of(**{**PLAIN, "resources": {}})
    assert fit(revision(spec, IMAGE), spec) is Fit.CURRENT
    assert fit(revision(spec, OTHER), spec) is Fit.OUTDATED
    assert fit(revision(changed, IMAGE), spec) is Fit.OLDER
    assert fit("", spec) is Fit.OLDER
    label = build_pod(spec, IMAGE, "a")["metadata"]["labels"][HASH_LABEL]
    assert label == revision(spec, IMAGE)
    assert len(label) <= 63


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


@pytest.mark.parametrize("case", RECORDED)
def test_an_operator_whose_pods_must_go_says_so(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_like(RECORDED[case].spec)
    label = revision(spec, IMAGE)
    monkeypatch.setattr(module, "OWN", 2)
    assert fit(label, spec) is Fit.OUTDATED
    assert fit(RECORDED[case].pod["metadata"]["labels"][HASH_LABEL], spec) is Fit.OUTDATED


@pytest.mark.parametrize("empty", [{"template": {"labels": {}, "env": []}}, {"rollout": {"maxSurge": 3}}], ids=str)
def test_what_says_nothing_about_pods_is_no_part_of_it(empty: Json) -> None:
    assert revision(spec_of(**empty), IMAGE) == revision(spec_of(), IMAGE)
