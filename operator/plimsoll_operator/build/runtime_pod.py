"""Builds a runtime pod, which meets the restricted Pod Security Standard and drains before it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plimsoll_operator.build.arguments import CLAIMS
from plimsoll_operator.build.group import (
    SHM_VOLUME,
    default_spread,
    given_spread,
    group_affinity,
    group_annotations,
    group_environment,
    group_sysctls,
    shm_size,
)
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.persistence import Store
from plimsoll_operator.spec.identity import (
    CONTAINER,
    GROUP_LABEL,
    HASH_LABEL,
    INDEX_LABEL,
    METRICS_PORT,
    PORT,
    ROLE_LABEL,
    SIZE_LABEL,
    selector_labels,
)
from plimsoll_operator.spec.workload import Workload

USER = 65532
_FIXED_USER = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
TERMINATION_LOG = "/dev/termination-log"
CACHE = "/cache"
LEAVE_SECONDS = 3
"""A deleted pod serves for this many more seconds, until all clients know of its deletion and its replacement."""
GRACE_BEYOND_DRAIN = 15 + LEAVE_SECONDS
START_PERIOD = 2
CACHE_LIMIT = "256Gi"
"""Size limit of the cache without `resources.ephemeralStorage`: enough for any one accelerator, but not a whole disk.
"""
NODE_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
NODE_LOST_SECONDS = 60
"""How long a pod stays on a node that does not respond. Kubernetes' default of 300 s is long for waiting requests."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The differences between pods of models and pods of pools.

    `environment` maps a variable to its text, or to the source of its value (`valueFrom`). `claims` maps the name
    of a PersistentVolumeClaim to the name of its volume; each is mounted read-only at /models/CLAIM. `stores` are
    mounted writable. `leader`: the address of the group's leader; "" for a leader. `avoid`: values of
    `topologyKey` to which a leader does not go if possible.
    """

    role: str
    group: str
    revision: str
    arguments: Sequence[str]
    environment: Mapping[str, str | Mapping[str, Any]] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)
    stores: Sequence[Store] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    index: int = 0
    leader: str = ""
    avoid: Sequence[str] = ()


def build_runtime_pod(spec: Workload, image: Image, suffix: str, parts: Parts) -> dict[str, Any]:
    """Build one pod. Two pods of one spec, image, group and index differ only in `suffix`."""
    body = _with_defaults(_pod_spec(spec, image, parts), spec, parts)
    ours = {
        **_selector(spec, spec.owner.uid),
        HASH_LABEL: parts.revision,
        ROLE_LABEL: parts.role,
        GROUP_LABEL: parts.group,
        INDEX_LABEL: str(parts.index),
        **({SIZE_LABEL: str(spec.pods_per_replica)} if spec.pods_per_replica > 1 else {}),
        **parts.labels,
    }
    metadata: dict[str, Any] = {
        "name": pod_name(spec, suffix),
        "namespace": spec.key.namespace,
        "labels": {**spec.template.labels, **ours},
        "ownerReferences": [spec.owner.reference(awaited=True)],
    }
    if annotations := group_annotations(spec.template.annotations, parts.leader):
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def pod_name(spec: Workload, suffix: str) -> str:
    """Return the name of a pod, which is also its host name."""
    return f"{spec.key.name}-{suffix}"


def _with_defaults(body: dict[str, Any], spec: Workload, parts: Parts) -> dict[str, Any]:
    """Return the pod spec with a size limit of the volume `cache`, and a spread over nodes unless it has one."""
    limit = {"sizeLimit": spec.ephemeral_storage or CACHE_LIMIT}
    volumes = [{**volume, "emptyDir": limit} if volume["name"] == "cache" else volume for volume in body["volumes"]]
    constraints = default_spread(spec, parts.group, parts.index)
    return {"topologySpreadConstraints": constraints, **body, "volumes": volumes}


def _selector(spec: Workload, uid: str | None = None) -> dict[str, str]:
    return selector_labels(spec.key.name, uid, spec.owner.kind)


def _pod_spec(spec: Workload, image: Image, parts: Parts) -> dict[str, Any]:
    body: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "containers": [_container(spec, image, parts)],
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            **(_FIXED_USER if image.fixed_user else {}),
            "seccompProfile": {"type": "RuntimeDefault"},
            **group_sysctls(spec),
        },
        "terminationGracePeriodSeconds": spec.drain_seconds + GRACE_BEYOND_DRAIN,
        "tolerations": _tolerations(spec),
        "volumes": _volumes(spec, parts),
        **spec.template.scheduling,
    }
    if spec.template.service_account:
        body["serviceAccountName"] = spec.template.service_account
    if spec.template.spread is not None:
        body["topologySpreadConstraints"] = given_spread(spec, spec.template.spread, parts.index)
    if affinity := group_affinity(spec, parts.group, parts.index, parts.avoid):
        body["affinity"] = affinity
    return body


def _container(spec: Workload, image: Image, parts: Parts) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [{"name": "cache", "mountPath": CACHE}, {"name": "tmp", "mountPath": "/tmp"}]
    for claim, volume in parts.claims.items():
        mounts.append({"name": volume, "mountPath": f"{CLAIMS}/{claim}", "readOnly": True})
    mounts += [{"name": store.volume, "mountPath": store.path} for store in parts.stores]
    if shm_size(spec):
        mounts.append({"name": SHM_VOLUME, "mountPath": "/dev/shm"})
    body = {
        "name": CONTAINER,
        "image": image.of(spec),
        "imagePullPolicy": image.pull_policy,
        "args": list(parts.arguments),
        "env": _environment(spec, parts),
        "ports": [_port(name, port) for name, port in {"http": PORT, "metrics": METRICS_PORT, **parts.ports}.items()],
        "resources": _resources(spec),
        "lifecycle": {"preStop": {"sleep": {"seconds": LEAVE_SECONDS}}},
        "startupProbe": _probe("/health", period=START_PERIOD, failures=math.ceil(spec.startup_seconds / START_PERIOD)),
        "readinessProbe": _probe("/health", period=2, failures=2),
        "livenessProbe": _probe("/live", period=10, failures=6),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "volumeMounts": [*mounts, *(dict(m) for m in spec.template.volume_mounts)],
    }
    if spec.template.env_from:
        body["envFrom"] = [dict(source) for source in spec.template.env_from]
    return body


def _environment(spec: Workload, parts: Parts) -> list[dict[str, Any]]:
    """Return our variables, then the template's, which replace ours of the same name."""
    ours: dict[str, str | Mapping[str, Any]] = {
        "PLIMSOLL_CACHE": CACHE,
        "HF_HOME": f"{CACHE}/huggingface",
        "PLIMSOLL_TERMINATION_LOG": TERMINATION_LOG,
        **parts.environment,
        **group_environment(spec),
    }
    theirs = {entry["name"] for entry in spec.template.env}
    kept = [
        {"name": name, "value" if isinstance(value, str) else "valueFrom": value}
        for name, value in ours.items()
        if name not in theirs
    ]
    return [*kept, *(dict(entry) for entry in spec.template.env)]


def _resources(spec: Workload) -> dict[str, Any]:
    """Return requests and limits. Both have the same memory, so that a pod is not killed because another one uses too
    much.
    """
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if spec.cpu:
        requests["cpu"] = spec.cpu
    if spec.cpu_limit:
        limits["cpu"] = spec.cpu_limit
    if spec.ephemeral_storage:
        requests["ephemeral-storage"] = limits["ephemeral-storage"] = spec.ephemeral_storage
    if spec.memory:
        requests["memory"] = limits["memory"] = spec.memory
    if spec.accelerator:
        count = str(spec.accelerator.count)
        requests[spec.accelerator.resource] = limits[spec.accelerator.resource] = count
    found: Mapping[str, dict[str, str]] = {"requests": requests, "limits": limits}
    return {name: values for name, values in found.items() if values}


def _tolerations(spec: Workload) -> list[dict[str, Any]]:
    """Return the template's tolerations, and ours for a lost node unless it has its own."""
    theirs = [dict(toleration) for toleration in spec.template.tolerations]
    known = {toleration.get("key") for toleration in theirs}
    if None in known or "" in known:  # tolerates everything
        return theirs
    ours = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_LOST_SECONDS}
    return theirs + [{"key": key, **ours} for key in NODE_LOST if key not in known]


def _volumes(spec: Workload, parts: Parts) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [{"name": "cache", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    if size := shm_size(spec):
        volumes.append({"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    theirs = {volume["name"] for volume in spec.template.volumes}
    for claim, volume in parts.claims.items():
        if volume not in theirs:
            volumes.append({"name": volume, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    stores = {store.volume: store.claim for store in parts.stores}
    volumes += [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in stores.items()]
    return [*volumes, *(dict(v) for v in spec.template.volumes)]


def _port(name: str, port: int) -> dict[str, Any]:
    return {"name": name, "containerPort": port, "protocol": "TCP"}


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
