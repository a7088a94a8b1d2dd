"""Pods that only sleep: strangers to Plimsoll's pods, and placeholders on nodes."""

from __future__ import annotations

from collections.abc import Mapping

from harness.kube import Object


def idle_pod(
    name: str,
    image: str,
    *,
    labels: Mapping[str, str] | None = None,
    node: str = "",
    requests: Mapping[str, str] | None = None,
) -> Object:
    """Return a pod that sleeps, of an image with Python. `node`: the only node that may run it, if given."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "automountServiceAccountToken": False,
            "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "idle",
                    "image": image,
                    "command": ["python3", "-c", "import time; time.sleep(36000)"],
                    "resources": {"requests": dict(requests or {})},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }
