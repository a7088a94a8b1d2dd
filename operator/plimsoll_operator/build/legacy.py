"""The hash that pods of version 0.1.0 carry, to know them again.

It named everything in which two pods could differ, so the whole pod as that version built it had to be made to compare.
What it built is kept here as it was, apart from the builder that goes on: its pods are adopted as they are and not
replaced for the sake of another label. A later release that need not upgrade from 0.1.0 deletes this file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from plimsoll_operator.build.arguments import CLAIMS, claim_name, serve_arguments
from plimsoll_operator.build.image import Image
from plimsoll_operator.spec import Spec
from plimsoll_operator.template import Template

USER, PORT, LOG, CACHE = 65532, 8000, "/dev/termination-log", "/cache"
NODE_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
KNOWN = frozenset(
    {"labels", "annotations", "env", "volumes", "volume_mounts", "tolerations", "scheduling", "service_account"}
)
"""Parts of a template that were there; an object that sets another one is not what 0.1.0 made its pods from."""


def legacy_hash(spec: Spec, image: Image) -> str:
    """The label of a pod of this spec and image as 0.1.0 made it, "" where it could not have made one."""
    template, default = spec.template, Template()
    newer = [f.name for f in fields(Template) if f.name not in KNOWN]
    if spec.responses or spec.files:
        return ""
    if spec.cpu_limit or spec.ephemeral_storage or any(getattr(template, n) != getattr(default, n) for n in newer):
        return ""
    content = {
        "spec": _pod(spec, image),
        "labels": dict(spec.template.labels),
        "annotations": dict(spec.template.annotations),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _pod(spec: Spec, image: Image) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [{"name": "cache", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    if claim := claim_name(spec.source):
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    body: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "containers": [_container(spec, image)],
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": spec.drain_seconds + 15,
        "tolerations": _tolerations(spec),
        "volumes": [*volumes, *(dict(v) for v in spec.template.volumes)],
        **spec.template.scheduling,
    }
    if spec.template.service_account:
        body["serviceAccountName"] = spec.template.service_account
    return body


def _container(spec: Spec, image: Image) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [{"name": "cache", "mountPath": CACHE}, {"name": "tmp", "mountPath": "/tmp"}]
    if claim := claim_name(spec.source):
        mounts.append({"name": "model", "mountPath": f"{CLAIMS}/{claim}", "readOnly": True})
    theirs = {entry["name"] for entry in spec.template.env}
    ours = {"PLIMSOLL_CACHE": CACHE, "HF_HOME": f"{CACHE}/huggingface", "PLIMSOLL_TERMINATION_LOG": LOG}
    kept = [{"name": name, "value": value} for name, value in ours.items() if name not in theirs]
    return {
        "name": "runtime",
        "image": image.reference,
        "imagePullPolicy": image.pull_policy,
        "args": serve_arguments(spec),
        "env": [*kept, *(dict(entry) for entry in spec.template.env)],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(spec),
        "startupProbe": _probe("/health", 2, 1800),
        "readinessProbe": _probe("/health", 2, 2),
        "livenessProbe": _probe("/live", 10, 6),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
        "terminationMessagePath": LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mounts, *(dict(m) for m in spec.template.volume_mounts)],
    }


def _resources(spec: Spec) -> dict[str, Any]:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if spec.cpu:
        requests["cpu"] = spec.cpu
    if spec.memory:
        requests["memory"] = limits["memory"] = spec.memory
    if spec.accelerator:
        requests[spec.accelerator.resource] = limits[spec.accelerator.resource] = str(spec.accelerator.count)
    found: Mapping[str, dict[str, str]] = {"requests": requests, "limits": limits}
    return {name: values for name, values in found.items() if values}


def _tolerations(spec: Spec) -> list[dict[str, Any]]:
    theirs = [dict(toleration) for toleration in spec.template.tolerations]
    known = {toleration.get("key") for toleration in theirs}
    if None in known or "" in known:
        return theirs
    ours = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    return theirs + [{"key": key, **ours} for key in NODE_LOST if key not in known]


def _probe(path: str, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
