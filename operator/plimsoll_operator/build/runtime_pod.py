"""Builds a runtime pod, which meets the restricted Pod Security Standard and drains before it ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plimsoll_operator.build.arguments import CLAIMS
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.persistence import Store
from plimsoll_operator.spec.identity import (
    CONTAINER,
    GROUP_LABEL,
    HASH_LABEL,
    INDEX_LABEL,
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
OVER_NODES = ({"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"},)
NODE_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
NODE_LOST_SECONDS = 60
"""How long a pod stays on a node that does not respond. Kubernetes' default of 300 s is long for waiting requests."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The differences between pods of models and pods of pools.

    `environment` maps a variable to its text, or to the source of its value (`valueFrom`). `claims` maps the name
    of a PersistentVolumeClaim to the name of its volume; each is mounted read-only at /models/CLAIM. `stores` are
    mounted writable.
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


def build_runtime_pod(spec: Workload, image: Image, suffix: str, parts: Parts) -> dict[str, Any]:
    """Build one pod. Two pods of one spec, image, group and index differ only in `suffix`."""
    body = _with_defaults(_pod_spec(spec, image, parts), spec)
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
        "name": f"{spec.key.name}-{suffix}",
        "namespace": spec.key.namespace,
        "labels": {**spec.template.labels, **ours},
        "ownerReferences": [spec.owner.reference(awaited=True)],
    }
    if spec.template.annotations:
        metadata["annotations"] = dict(spec.template.annotations)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def _with_defaults(body: dict[str, Any], spec: Workload) -> dict[str, Any]:
    """Return the pod spec with a size limit of the volume `cache`, and a spread over nodes unless it has one."""
    limit = {"sizeLimit": spec.ephemeral_storage or CACHE_LIMIT}
    volumes = [{**volume, "emptyDir": limit} if volume["name"] == "cache" else volume for volume in body["volumes"]]
    return {"topologySpreadConstraints": _spread(spec, OVER_NODES), **body, "volumes": volumes}


def _selector(spec: Workload, uid: str | None = None) -> dict[str, str]:
    return selector_labels(spec.key.name, uid, spec.owner.kind)


def _spread(spec: Workload, constraints: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the topology spread constraints; one without a label selector gets that of the object's own pods."""
    own = {"labelSelector": {"matchLabels": _selector(spec)}}
    return [{**own, **constraint} for constraint in constraints]


def _pod_spec(spec: Workload, image: Image, parts: Parts) -> dict[str, Any]:
    body: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "containers": [_container(spec, image, parts)],
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            **(_FIXED_USER if image.fixed_user else {}),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": spec.drain_seconds + GRACE_BEYOND_DRAIN,
        "tolerations": _tolerations(spec),
        "volumes": _volumes(spec, parts),
        **spec.template.scheduling,
    }
    if spec.template.service_account:
        body["serviceAccountName"] = spec.template.service_account
    if spec.template.spread is not None:
        body["topologySpreadConstraints"] = _spread(spec, spec.template.spread)
    return body


def _container(spec: Workload, image: Image, parts: Parts) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [{"name": "cache", "mountPath": CACHE}, {"name": "tmp", "mountPath": "/tmp"}]
    for claim, volume in parts.claims.items():
        mounts.append({"name": volume, "mountPath": f"{CLAIMS}/{claim}", "readOnly": True})
    mounts += [{"name": store.volume, "mountPath": store.path} for store in parts.stores]
    if spec.template.shm_size:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    body = {
        "name": CONTAINER,
        "image": image.of(spec),
        "imagePullPolicy": image.pull_policy,
        "args": list(parts.arguments),
        "env": _environment(spec, parts),
        "ports": [_port(name, port) for name, port in {"http": PORT, **parts.ports}.items()],
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
    if spec.template.shm_size:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": spec.template.shm_size}})
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
