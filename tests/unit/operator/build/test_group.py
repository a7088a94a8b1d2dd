"""Pods and Services of groups: snapshots, and the parts that options change."""

from __future__ import annotations

from typing import Any

import pytest
from operator_support.objects import Json, grouped, spec_of
from operator_support.snapshots import assert_snapshot

from plimsoll_operator.build.image import Image
from plimsoll_operator.build.model import build_pod, build_service
from plimsoll_operator.build.pod_revision import user_part
from plimsoll_operator.spec.identity import INDEX_LABEL
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.spec.template import SpecError

IMAGE = Image("registry.example/runtime:1.0")
NEAR = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}
FULL: Json = {
    "parallel": {
        "tensor": 4,
        "pipeline": 2,
        "pods": 2,
        "topologyKey": "topology.kubernetes.io/zone",
        "recoverSeconds": 60,
        "tokenSecret": {"name": "groups", "key": "token"},
    },
    "resources": {"memory": "16Gi", "accelerator": {"resource": "nvidia.com/gpu", "count": 4}},
    "template": {"affinity": {"podAffinity": NEAR}},
}


def container(body: Json) -> Any:
    (found,) = body["spec"]["containers"]
    return found


@pytest.mark.parametrize("index", [0, 1])
def test_pod(index: int) -> None:
    leader = "198.18.0.7" if index else ""
    assert_snapshot(f"pod-group-{index}", build_pod(spec_of(**FULL), IMAGE, "x1y2z", "3", index, leader))


def test_service() -> None:
    assert_snapshot("service-group", build_service(spec_of(**FULL)))


def test_the_service_of_single_pods_selects_all_of_them() -> None:
    assert INDEX_LABEL not in build_service(spec_of(parallel={"tensor": 4}))["spec"]["selector"]
    assert build_service(grouped(2))["spec"]["selector"][INDEX_LABEL] == "0"


def test_ranks_of_one_pod_need_no_group() -> None:
    body = build_pod(spec_of(parallel={"tensor": 2, "pipeline": 2}), IMAGE, "a")
    assert container(body)["args"][-4:] == ["--tensor-parallel", "2", "--pipeline-parallel", "2"]
    assert not [entry for entry in container(body)["env"] if "ADDRESS" in entry["name"]]
    assert "sysctls" not in body["spec"]["securityContext"]
    (shm,) = [volume for volume in body["spec"]["volumes"] if volume["name"] == "shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "256Mi"}


def test_a_leaders_ipv6_address_is_written_in_brackets() -> None:
    args = container(build_pod(grouped(2), IMAGE, "a", "0", 1, "fd00::7"))["args"]
    assert args[args.index("--group-address") + 1] == "[fd00::7]:8200"


def test_the_template_wins() -> None:
    body = build_pod(
        spec_of(
            parallel={"tensor": 4, "pods": 2},
            template={
                "env": [{"name": "PLIMSOLL_POD_ADDRESS", "value": "198.18.0.9"}],
                "shmSize": "1Gi",
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "rack"},
                    {"maxSkew": 2, "topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}},
                ],
            },
        ),
        IMAGE,
        "a",
        index=1,
        leader="198.18.0.7",
    )
    assert [e for e in container(body)["env"] if e["name"] == "PLIMSOLL_POD_ADDRESS"] == [
        {"name": "PLIMSOLL_POD_ADDRESS", "value": "198.18.0.9"}
    ]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in body["spec"]["volumes"]
    assert [each["topologyKey"] for each in body["spec"]["topologySpreadConstraints"]] == ["zone"]
    mounted = {
        "volumes": [{"name": "own", "emptyDir": {"medium": "Memory"}}],
        "volumeMounts": [{"name": "own", "mountPath": "/dev/shm"}],
    }
    body = build_pod(spec_of(parallel={"tensor": 2}, template=mounted), IMAGE, "a")
    assert [m["name"] for m in container(body)["volumeMounts"] if m["mountPath"] == "/dev/shm"] == ["own"]


def test_only_what_changes_pods_changes_their_hash() -> None:
    plain = user_part(spec_of())
    assert user_part(spec_of(parallel={})) == user_part(spec_of(parallel={"tensor": 1, "pods": 1})) == plain
    assert user_part(grouped(2)) == user_part(spec_of(parallel={"tensor": 2, "pipeline": 1, "pods": 2})) != plain


def refusal(**changes: Any) -> str:
    with pytest.raises(SpecError) as refused:
        spec_of(**changes)
    return str(refused.value)


def test_a_spec_with_impossible_numbers_is_refused() -> None:
    assert "are 3 ranks, which 2 pods cannot share evenly" in refusal(parallel={"tensor": 3, "pods": 2})
    gpu = {"accelerator": {"resource": "nvidia.com/gpu", "count": 2}}
    assert "count is 2, but each pod has 1 rank, which" in refusal(resources=gpu)
    assert "count is 2, but each pod has 4 ranks, which" in refusal(resources=gpu, parallel={"tensor": 4})
    assert isinstance(spec_of(resources=gpu, parallel={"tensor": 4, "pods": 2}), Spec)


def test_shared_memory_must_leave_room_for_the_weights() -> None:
    small, ranks = {"memory": "256Mi"}, {"tensor": 4}
    assert "/dev/shm of 256Mi leave nothing of resources.memory 256Mi" in refusal(parallel=ranks, resources=small)
    words = refusal(parallel=ranks, resources={"memory": "512Mi"}, runtime={"kvMemory": "300Mi"})
    assert "/dev/shm of 256Mi and runtime.kvMemory 300Mi leave nothing of resources.memory 512Mi" in words
    spec_of(parallel=ranks | {"pods": 4}, resources=small)
    spec_of(parallel=ranks, resources={"memory": "512Mi"}, runtime={"kvMemory": "40%"})
    spec_of(resources=small, template={"shmSize": "1Gi"})


def test_a_leader_goes_elsewhere_if_possible_after_its_zone_had_no_room() -> None:
    zone: Json = {"parallel": {"tensor": 2, "pods": 2, "topologyKey": "zone"}}
    affinity = build_pod(spec_of(**zone), IMAGE, "a", avoid=("z1", "z2"))["spec"]["affinity"]
    (preferred,) = affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"] == {
        "matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["z1", "z2"]}]
    }
    assert "affinity" not in build_pod(grouped(2), IMAGE, "a", avoid=("z1",))["spec"]


def test_only_the_operator_says_who_leads() -> None:
    template = {"annotations": {"plimsoll.dev/group-leader": "198.18.0.9", "note": "kept"}}
    assert build_pod(spec_of(template=template), IMAGE, "a")["metadata"]["annotations"] == {"note": "kept"}
    found = build_pod(grouped(2, template=template), IMAGE, "a", "0", 1, "198.18.0.7")["metadata"]["annotations"]
    assert found == {"note": "kept", "plimsoll.dev/group-leader": "198.18.0.7"}
