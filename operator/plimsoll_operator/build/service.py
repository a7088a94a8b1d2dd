"""The Service of a model: a stable name inside the cluster, for those who do not go through the gateway."""

from __future__ import annotations

from typing import Any

from plimsoll_operator.identity import selector_labels
from plimsoll_operator.spec import Spec


def build_service(spec: Spec, uid: str | None) -> dict[str, Any]:
    """Port 80 to the runtime's http port; `uid` is the owner's where all pods carry it as a label."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": spec.key.name,
            "namespace": spec.key.namespace,
            "labels": selector_labels(spec.key.name),
            "ownerReferences": [spec.owner.reference()],
        },
        "spec": {
            "selector": selector_labels(spec.key.name, uid),
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
        },
    }
