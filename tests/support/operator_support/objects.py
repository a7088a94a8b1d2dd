"""ModelDeployments and their children as the API server returns them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from plimsoll_operator.spec import identity
from plimsoll_operator.spec.model_deployment import Spec, read_spec

Json = dict[str, Any]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
UID = "00000000-0000-0000-0000-000000000001"


def stamp(time: datetime) -> str:
    """Return a time as the API server writes it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def model(name: str = "gemma", *, uid: str = UID, generation: int = 1, created: datetime = EPOCH, **spec: Any) -> Json:
    """Return a ModelDeployment with the API server's defaults; `spec` replaces whole fields of the spec."""
    return {
        "apiVersion": identity.API_VERSION,
        "kind": identity.KIND,
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid,
            "generation": generation,
            "creationTimestamp": stamp(created),
        },
        "spec": {
            "model": {"source": "demo://gemma-3-270m"},
            "replicas": 1,
            "resources": {},
            "runtime": {},
            "template": {},
            **spec,
        },
    }


def spec_of(name: str = "gemma", **changes: Any) -> Spec:
    """Return the spec of `model`."""
    return read_spec(model(name, **changes))


def grouped(pods: int, **changes: Any) -> Spec:
    """Return the spec of `model` with groups of this many pods, each with one rank."""
    return spec_of(parallel={"tensor": pods, "pods": pods}, **changes)


FULL: Json = {
    "model": {
        "source": "pvc://weights/llama/8b",
        "servedNames": ["llama", "org/llama-3:8b"],
    },
    "replicas": 3,
    "resources": {
        "cpu": "500m",
        "cpuLimit": 2,
        "memory": "16Gi",
        "ephemeralStorage": "100Gi",
        "accelerator": {"resource": "nvidia.com/gpu", "count": 1},
    },
    "runtime": {
        "dtype": "bfloat16",
        "maxModelLen": 4096,
        "maxBatchTokens": 512,
        "maxSequences": 32,
        "maxWaiting": 100,
        "kvMemory": "40%",
        "blockSize": 32,
        "threads": 2,
        "prefixCaching": False,
        "attentionBackend": "triton",
        "policy": "priority",
        "drainSeconds": 7,
    },
    "template": {
        "labels": {"team": "search"},
        "annotations": {"note": "a pod of the search team"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [
            {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
        ],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "env": [
            {"name": "HF_HOME", "value": "/data/hub"},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "priorityClassName": "serving",
        "serviceAccountName": "reader",
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"},
        ],
        "runtimeClassName": "nvidia",
        "schedulerName": "volcano",
        "image": "registry.example/ai/runtime:2",
        "imagePullSecrets": [{"name": "pull"}],
        "shmSize": "2Gi",
        "envFrom": [{"prefix": "HUB_", "secretRef": {"name": "hub"}}],
    },
}
"""A spec that sets every field."""
