"""The API server's verdict on specs; a contract test compares laptop mode with the same list."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from operator_support.apiserver import ADMIN, ApiServer
from operator_support.direct import MERGE, Direct, Refused
from operator_support.largest import largest, stored_bytes
from operator_support.objects import FULL, Json
from operator_support.verdicts import VERDICTS, Verdict

from plimsoll_operator.kube.api import APPLY, FIELD_MANAGER

CRDS = Path(__file__).parents[3] / "crds"
MODEL = {"model": {"source": "demo://gemma-3-270m"}}


@pytest.mark.long
def test_no_model_brings_code_of_its_own(direct: Direct) -> None:
    """spec.runtime has no trustRemoteCode; the API server drops it from clients without strict validation."""
    asked = {"model": {"source": "hf://a/b"}, "placement": {"pool": "shared"}, "runtime": {"trustRemoteCode": True}}
    with pytest.raises(Refused, match=r'unknown field "spec\.runtime\.trustRemoteCode"'):
        direct.create_model("m", asked)
    body = {"apiVersion": "plimsoll.dev/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "m"}, "spec": asked}
    path = f"/apis/plimsoll.dev/v1alpha1/namespaces/{direct.namespace}/modeldeployments"
    stored = direct.ask("POST", path, body, fieldValidation="Ignore")
    assert "trustRemoteCode" not in str(stored["spec"])


@pytest.mark.matrix(6)
@pytest.mark.parametrize("verdict", VERDICTS, ids=str)
def test_the_api_servers_verdict(direct: Direct, verdict: Verdict) -> None:
    if verdict.refusal is None:
        direct.create_model("m", MODEL | verdict.spec)
        return
    with pytest.raises(Refused) as refused:
        direct.create_model("m", MODEL | verdict.spec)
    assert refused.value.code == 422
    assert verdict.refusal in refused.value.message


POOL: Json = {"resources": {"memory": "4Gi"}}


@pytest.mark.parametrize(
    "spec",
    [
        POOL,
        {"resources": {"profile": "a100", "cpu": 4}},
        {
            "replicas": 2,
            "resources": FULL["resources"],
            "memory": {"line": "90%", "sleepers": "8Gi"},
            "eviction": {"minimumResidencySeconds": 0},
            "drainSeconds": 0,
            "rollout": {"maxSurge": "25%", "maxUnavailable": 0},
            "template": FULL["template"],
            "namespaces": {
                "matchLabels": {"models": "shared"},
                "matchExpressions": [
                    {"key": "tier", "operator": "NotIn", "values": ["trial"]},
                    {"key": "legacy", "operator": "DoesNotExist"},
                ],
            },
            "sharedClaims": ["data", "weights.v2"],
            "files": {"claim": "files", "size": 1 << 40, "batchLines": 65536},
        },
        POOL
        | {
            "responses": {"claim": "kept", "count": 1, "size": "1Gi", "tenantShare": "25%", "days": 90},
            "files": {"claim": "kept"},
            "rollout": {"maxSurge": 0, "maxUnavailable": 1},
        },
    ],
    ids=["least", "profile", "most", "kept"],
)
def test_pools_that_are_good(direct: Direct, spec: Json) -> None:
    stored = direct.create_pool("shared", spec)["spec"]
    defaults = {"line": "90%", "sleepers": 0}
    assert stored["memory"] == defaults | spec.get("memory", {})
    assert stored["replicas"] == spec.get("replicas", 1)


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ({}, "spec.resources"),
        ({"resources": {}}, "resources.memory is what the models of a pool share"),
        (POOL | {"memory": {"line": "101%"}}, "must be a share from 1% to 100%"),
        (POOL | {"memory": {"line": "0%"}}, "must be a share from 1% to 100%"),
        (POOL | {"memory": {"sleepers": "lots"}}, "must be an amount such as 8Gi or 512Mi, or 0"),
        (POOL | {"memory": {"sleepers": "4Gi"}}, "leaves nothing of resources.memory for models that are awake"),
        (POOL | {"memory": {"sleepers": 1 << 32}}, "leaves nothing of resources.memory for models that are awake"),
        (POOL | {"eviction": {"minimumResidencySeconds": -1}}, "minimumResidencySeconds"),
        (POOL | {"replicas": 257}, "replicas"),
        (POOL | {"size": 1}, 'unknown field "spec.size"'),
        (POOL | {"namespaces": {"matchLabels": {"a": "no value"}}}, "should match"),
        (POOL | {"namespaces": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}, "operator"),
        (POOL | {"namespaces": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "In and NotIn need values"),
        (
            POOL | {"namespaces": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}},
            "take no values",
        ),
        (POOL | {"namespaces": {"names": ["team"]}}, 'unknown field "spec.namespaces.names"'),
        (POOL | {"sharedClaims": ["a", "a"]}, "Duplicate value"),
        (POOL | {"sharedClaims": ["A"]}, "should match"),
        (
            POOL | {"template": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}},
            "must be a persistentVolumeClaim",
        ),
        (
            POOL | {"template": {"volumes": [{"name": "plimsoll-files", "emptyDir": {}}]}},
            "the operator's own; choose another name",
        ),
        (
            POOL | {"responses": {"claim": "kept"}, "rollout": {"maxSurge": 1}},
            "a pod waits until the one before it has gone; leave out rollout.maxSurge",
        ),
        (POOL | {"responses": {"claim": "Kept"}}, "should match"),
        (POOL | {"responses": {"tenantShare": "0%"}}, "must be a share from 1% to 100%"),
        (POOL | {"files": {"size": "1Gi"}}, "spec.files.claim"),
        (POOL | {"files": {"claim": "shared", "batchLines": 0}}, "batchLines"),
    ],
)
def test_pools_that_are_refused(direct: Direct, spec: Json, refusal: str) -> None:
    with pytest.raises(Refused) as refused:
        direct.create_pool("shared", spec)
    assert refused.value.code in (400, 422)
    assert refusal in refused.value.message


@pytest.mark.parametrize("part", ["responses", "files"])
def test_a_model_in_a_pool_is_told_whose_stores_are_meant(direct: Direct, part: str) -> None:
    asked = {"model": {"source": "demo://x"}, "placement": {"pool": "shared"}, part: {"claim": "kept"}}
    with pytest.raises(Refused) as refused:
        direct.create_model("m", asked)
    assert f"with placement the pods are the pool's; set {part} in the RuntimePool" in refused.value.message


def test_a_pool_is_scaled_as_a_deployment_is(direct: Direct) -> None:
    direct.create_pool("shared", POOL)
    path = f"/apis/plimsoll.dev/v1alpha1/namespaces/{direct.namespace}/runtimepools/shared/scale"
    scale = direct.ask("GET", path)
    assert scale["spec"]["replicas"] == 1
    direct.ask("PUT", path, scale | {"spec": {"replicas": 3}})
    assert direct.pool("shared")["spec"]["replicas"] == 3


@pytest.mark.parametrize(("name", "models"), [("pool", 5), ("keeping-pool", 2)])
def test_the_examples_of_pools_are_accepted(direct: Direct, name: str, models: int) -> None:
    path = Path(__file__).parents[3] / f"examples/{name}.yaml"
    kinds = {"RuntimePool": "runtimepools", "ModelDeployment": "modeldeployments"}
    made = []
    for body in yaml.safe_load_all(path.read_text()):
        collection = f"/apis/plimsoll.dev/v1alpha1/namespaces/{direct.namespace}/{kinds[body['kind']]}"
        direct.ask("POST", collection, body, fieldValidation="Strict")
        made.append(body["kind"])
    assert made == ["RuntimePool", *["ModelDeployment"] * models]


def test_the_example_of_a_batch_is_accepted(direct: Direct) -> None:
    path = Path(__file__).parents[3] / "examples/batch.yaml"
    collections = {"PersistentVolumeClaim": "api/v1", "Job": "apis/batch/v1"}
    for body in yaml.safe_load_all(path.read_text()):
        name = f"{body['kind'].lower()}s"
        collection = f"/{collections[body['kind']]}/namespaces/{direct.namespace}/{name}"
        made = direct.ask("POST", collection, body, fieldValidation="Strict")
        assert made["kind"] == body["kind"]


def test_the_largest_status_of_a_host_is_stored(direct: Direct) -> None:
    """etcd rejects a request of more than 1.5 MiB. The status is applied like the operator's, which adds managed
    fields.
    """
    (version,) = yaml.safe_load((CRDS / "modelhosts.yaml").read_text())["spec"]["versions"]
    status = largest(version["schema"]["openAPIV3Schema"]["properties"]["status"])
    body = {"apiVersion": "plimsoll.dev/v1alpha1", "kind": "ModelHost", "metadata": {"name": "h"}}
    path = f"/apis/plimsoll.dev/v1alpha1/namespaces/{direct.namespace}/modelhosts"
    direct.ask("POST", path, body)
    manager = {"fieldManager": FIELD_MANAGER, "force": "true"}
    for _ in range(2):
        stored = direct.ask("PATCH", f"{path}/h/status", body | {"status": status}, APPLY, **manager)
    assert stored["status"] == status
    assert 1_400_000 < stored_bytes(stored) < 3 * 2**19
    for change in ({"models": [*status["models"], status["models"][0]]}, {"load": status["load"] + "<"}):
        with pytest.raises(Refused, match=r"(?s)422.*(Too many|Too long)"):
            direct.ask("PATCH", f"{path}/h/status", {"status": change}, MERGE)


def test_a_status_has_at_most_64_groups(direct: Direct) -> None:
    (version,) = yaml.safe_load((CRDS / "modeldeployments.yaml").read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    status = {name: largest(schema[name]) for name in ("parallel", "groups")}
    place = f"{path_of(direct.create_model('m', MODEL | {'parallel': {'tensor': 2, 'pods': 2}}))}/status"
    stored = direct.ask("PATCH", place, {"status": status}, MERGE)
    assert stored["status"] == status
    assert len(status["groups"]) == 64
    groups = [*status["groups"], status["groups"][0] | {"group": "64"}]
    for change, words in ((groups, "Too many"), (groups[:1] * 2, "Duplicate value")):
        with pytest.raises(Refused, match=words):
            direct.ask("PATCH", place, {"status": {"groups": change}}, MERGE)


PLACED: Json = {
    "desiredReplicas": 1,
    "updatedReplicas": 1,
    "readyReplicas": 1,
    "phase": "Ready",
    "where": "shared-x1y2z Resident, " * 8,
    "why": "woken for a request",
}


def test_kubectl_prints_one_line_per_model_and_the_reasons_with_wide(server: ApiServer, direct: Direct) -> None:
    stored = direct.create_model("chat", MODEL | {"placement": {"pool": "shared"}})
    direct.ask("PATCH", f"{path_of(stored)}/status", {"status": PLACED}, MERGE)

    def kubectl(*words: str) -> list[str]:
        config = ("--kubeconfig", str(server.kubeconfig(ADMIN)), "--namespace", direct.namespace)
        done = subprocess.run(
            [str(server.programs.kube), "kubectl", *config, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    head, line = kubectl("get", "mdep")
    assert head.split() == ["NAME", "SOURCE", "DESIRED", "UPDATED", "READY", "PARALLEL", "PHASE", "CANARY", "AGE"]
    assert max(len(head), len(line)) <= 100
    head, line = kubectl("get", "mdep", "-o", "wide")
    assert head.split()[-5:] == ["AGE", "WHERE", "WHY", "NAMES", "MESSAGE"]
    assert "woken for a request" in line
    groups = direct.create_model("big", MODEL | {"parallel": {"tensor": 2, "pipeline": 2, "pods": 2}})
    told = PLACED | {"parallel": "tp2 x pp2, 2 pods", "where": ""}
    direct.ask("PATCH", f"{path_of(groups)}/status", {"status": told}, MERGE)
    head, line, _ = kubectl("get", "mdep")
    assert line[head.index("PARALLEL") :].startswith("tp2 x pp2, 2 pods   Ready")
    assert len(head) <= 100
    assert "chat" in "".join(kubectl("get", "plimsoll"))
    assert kubectl("get", "all") == []


def path_of(item: Json) -> str:
    """Return the path of a ModelDeployment."""
    meta = item["metadata"]
    return f"/apis/plimsoll.dev/v1alpha1/namespaces/{meta['namespace']}/modeldeployments/{meta['name']}"
