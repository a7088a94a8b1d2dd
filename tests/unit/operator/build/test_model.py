"""Compares the built objects with snapshots, so that every change of them is intended.

Existing pods are not replaced by such a change. If it must reach them, raise OWN in build/pod_revision.py.

PLIMSOLL_UPDATE_SNAPSHOTS=1 writes the snapshots.
"""

from __future__ import annotations

import copy
from dataclasses import MISSING, fields
from typing import Any

import pytest
from operator_support.objects import FULL, Json, model, spec_of
from operator_support.snapshots import assert_snapshot

from plimsoll_operator.build.image import Image
from plimsoll_operator.build.model import build_pod, build_service
from plimsoll_operator.build.pod_revision import revision, user_part
from plimsoll_operator.build.runtime_pod import CACHE_LIMIT
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.spec.identity import GROUP_LABEL, HASH_LABEL, KEEPER_LABEL, REVISION_LABEL, selector_labels
from plimsoll_operator.spec.model_deployment import read_spec
from plimsoll_operator.spec.template import SpecError

IMAGE = Image("registry.example/runtime:1.0", allowed=("registry.example/ai",))
SPECS: dict[str, Json] = {
    "least": {},
    "full": FULL,
    "file": {"model": {"source": "file:///srv/a model"}, "runtime": {"prefixCaching": True}, "resources": {"cpu": 2}},
    "stores": {
        "responses": {"claim": "kept", "count": 5, "size": "1Gi", "days": 7, "tenantShare": "50%"},
        "files": {"claim": "shared", "size": "100Gi", "batchLines": 64},
    },
    "hub": {
        "model": {"source": "hf://org/name", "revision": "v1.0"},
        "template": {"tolerations": [{"operator": "Exists"}]},
    },
}


@pytest.mark.parametrize("case", SPECS)
def test_pod(case: str) -> None:
    assert_snapshot(f"pod-{case}", build_pod(spec_of(**SPECS[case]), IMAGE, "x1y2z"))


@pytest.mark.parametrize("case", ["least", "full"])
def test_service(case: str) -> None:
    assert_snapshot(f"service-{case}", build_service(spec_of(**SPECS[case])))


@pytest.mark.parametrize("case", SPECS)
def test_building_changes_nothing_and_repeats_itself(case: str) -> None:
    item = model(**SPECS[case])
    before = copy.deepcopy(item)
    spec = read_spec(item)
    first = build_pod(spec, IMAGE, "a", "0")
    second = build_pod(spec, IMAGE, "b", "1")
    assert build_service(spec) == build_service(spec)
    assert (first["metadata"]["labels"][GROUP_LABEL], second["metadata"]["labels"].pop(GROUP_LABEL)) == ("0", "1")
    second["metadata"]["labels"][GROUP_LABEL] = "0"
    if KEEPER_LABEL in first["metadata"]["labels"]:
        assert second["metadata"]["labels"].pop(KEEPER_LABEL) == "gemma-1"
        second["metadata"]["labels"][KEEPER_LABEL] = "gemma-0"
    second["metadata"]["name"] = first["metadata"]["name"]
    assert first == second
    first["spec"]["containers"][0]["env"][0]["value"] = "changed"
    assert item == before


CHANGES: dict[str, Json] = {
    "source": {"model": {**FULL["model"], "source": "pvc://weights/llama/70b"}},
    "served names": {"model": {**FULL["model"], "servedNames": ["llama"]}},
    "resources": {"resources": {**FULL["resources"], "memory": "32Gi"}},
    **{
        f"runtime.{field}": {"runtime": {k: v for k, v in FULL["runtime"].items() if k != field}}
        for field in FULL["runtime"]
    },
    "responses": {"responses": {"claim": "kept"}},
    "the memory of responses": {"responses": {"count": 5}},
    "files": {"files": {"claim": "shared"}},
    **{
        f"template.{field}": {"template": {k: v for k, v in FULL["template"].items() if k != field}}
        for field in FULL["template"]
    },
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_that_pods_can_see_rolls_them(case: str) -> None:
    assert revision(spec_of(**{**FULL, **CHANGES[case]}), IMAGE) != revision(spec_of(**FULL), IMAGE)


@pytest.mark.parametrize("image", [Image("registry.example/runtime:1.1"), Image(IMAGE.reference, "Always")])
def test_another_image_rolls_them(image: Image) -> None:
    assert revision(spec_of(), image) != revision(spec_of(), IMAGE)


@pytest.mark.parametrize("changes", [{"replicas": 7}, {"generation": 9}], ids=str)
def test_what_pods_cannot_see_does_not_roll_them(changes: dict[str, Any]) -> None:
    assert revision(spec_of(**{**FULL, **changes}), IMAGE) == revision(spec_of(**FULL), IMAGE)


def test_pods_are_spread_and_their_cache_is_bounded_by_default() -> None:
    pod = build_pod(spec_of(), IMAGE, "a")
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert spread["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["volumes"][0] == {"name": "cache", "emptyDir": {"sizeLimit": CACHE_LIMIT}}
    silent = build_pod(spec_of(template={"topologySpreadConstraints": []}), IMAGE, "a")
    assert silent["spec"]["topologySpreadConstraints"] == []


def test_a_pod_that_claims_an_accelerator_must_use_it() -> None:
    claimed = spec_of(resources={"accelerator": {"resource": "nvidia.com/gpu"}})
    assert build_pod(claimed, IMAGE, "a")["spec"]["containers"][0]["args"][-2:] == ["--device", "cuda"]


@pytest.mark.parametrize(
    ("image", "allowed"),
    [
        ("registry.example/ai/runtime:2", True),
        ("registry.example/ai", True),
        ("registry.example/ai@sha256:" + "a" * 64, True),
        ("registry.example/aid/runtime:2", False),
        ("registry.example/other:2", False),
        ("registry.example.evil/ai/runtime", False),
        ("ai/runtime", False),
    ],
)
def test_an_image_from_elsewhere_is_refused_with_what_to_do(image: str, allowed: bool) -> None:
    spec = spec_of(template={"image": image})
    if allowed:
        assert build_pod(spec, IMAGE, "a")["spec"]["containers"][0]["image"] == image
        return
    with pytest.raises(SpecError, match=r"\(only registry\.example/ai\): leave it out, or add its prefix"):
        IMAGE.of(spec)
    with pytest.raises(SpecError, match=r"\(none\)"):
        Image("runtime:1").of(spec)


def test_code_that_comes_with_a_model_is_trusted_by_spec_and_installation() -> None:
    context: Any = {field.name: None for field in fields(ReconcileContext) if field.default is MISSING}
    strict, open_to_it = (
        ReconcileContext(**context | {"image": IMAGE}),
        ReconcileContext(**context | {"image": IMAGE, "remote_code": True}),
    )
    bringing = spec_of(model={"source": "hf://org/m", "trustRemoteCode": True})
    with pytest.raises(SpecError, match=r"leave it out, or set the chart's runtime\.trustRemoteCode"):
        strict.check(bringing)
    open_to_it.check(bringing)
    strict.check(spec_of(model={"source": "hf://org/m", "trustRemoteCode": False}))
    assert "--trust-remote-code" in build_pod(bringing, IMAGE, "a")["spec"]["containers"][0]["args"]


def test_not_to_trust_is_to_say_nothing() -> None:
    said, silent = ({"source": "hf://org/m", **more} for more in ({"trustRemoteCode": False}, {}))
    assert revision(spec_of(model=said), IMAGE) == revision(spec_of(model=silent), IMAGE)


def test_to_keep_nothing_is_to_say_nothing() -> None:
    assert revision(spec_of(responses={}), IMAGE) == revision(spec_of(), IMAGE)
    assert spec_of(responses={}).responses is None


def test_one_claim_for_all_that_is_kept_is_one_volume() -> None:
    """A kubelet would wait forever for a second volume of the same claim."""
    body = build_pod(spec_of(responses={"claim": "kept"}, files={"claim": "kept"}), IMAGE, "a")["spec"]
    volumes = [v for v in body["volumes"] if "persistentVolumeClaim" in v]
    assert volumes == [{"name": "plimsoll-files", "persistentVolumeClaim": {"claimName": "kept"}}]
    mounts = [m for m in body["containers"][0]["volumeMounts"] if m["name"] == "plimsoll-files"]
    assert [m["mountPath"] for m in mounts] == ["/var/lib/plimsoll/responses", "/var/lib/plimsoll/files"]


@pytest.mark.parametrize(
    "mounting",
    [
        {"model": {"source": "pvc://kept/llama"}},
        {"template": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "kept"}}]}},
    ],
)
@pytest.mark.parametrize("store", ["responses", "files"])
def test_a_claim_that_the_pods_have_already_is_refused(mounting: Json, store: str) -> None:
    with pytest.raises(SpecError, match=rf"{store}\.claim kept is already a volume of the pods"):
        spec_of(**(mounting | {store: {"claim": "kept"}}))
    spec_of(**(mounting | {store: {"claim": "other"}}))


def test_what_is_left_out_of_a_store_is_no_part_of_a_pods_name() -> None:
    """A new optional field must not change existing hashes, so the hashed JSON is compared as text."""
    said: Json = {"responses": {"claim": "kept"}, "files": {"claim": "shared"}}
    text = user_part(spec_of(**said))
    longer: Json = {"responses": {"claim": "kept", "days": 1}, "files": {"claim": "shared", "size": "1Gi"}}
    assert text != user_part(spec_of(**longer))
    assert text == "e4e0612301"


def test_the_order_of_fields_does_not_roll_them() -> None:
    turned: Json = {
        key: dict(reversed(value.items())) if isinstance(value, dict) else value for key, value in FULL.items()
    }
    assert revision(spec_of(**turned), IMAGE) == revision(spec_of(**FULL), IMAGE)


def test_labels_of_the_template_never_hide_ours() -> None:
    theirs = dict.fromkeys(
        (HASH_LABEL, REVISION_LABEL, "app.kubernetes.io/managed-by", "plimsoll.dev/model-deployment", "mine"), "x"
    )
    plain, labelled = (build_pod(spec_of(template={"labels": labels}), IMAGE, "a") for labels in ({}, theirs))
    assert labelled["metadata"]["labels"] == {
        **plain["metadata"]["labels"],
        "mine": "x",
        HASH_LABEL: revision(spec_of(template={"labels": theirs}), IMAGE),
        REVISION_LABEL: user_part(spec_of(template={"labels": theirs})),
    }


def test_the_service_selects_its_pods_and_none_that_only_has_their_names() -> None:
    spec = spec_of(**FULL)
    labels = build_pod(spec, IMAGE, "a")["metadata"]["labels"]
    thief = selector_labels("gemma", "another-uid")
    selected = build_service(spec)["spec"]["selector"].items()
    assert selected <= labels.items()
    assert not selected <= thief.items()
