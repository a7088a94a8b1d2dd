"""The host API of a pool's pods, called with the operator's token."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import httpx
from kubernetes import client

from harness.kube import Kube, Object
from harness.waiting import until
from plimsoll_operator.build.host import FILE, HostKey
from plimsoll_operator.spec.identity import ObjectKey

PORT = 8100
SLEEP_SECONDS = 60


class HostApi:
    """Client of the host APIs of one pool. It needs a route to the pods, which clusters given by KUBECONFIG may not
    offer.
    """

    def __init__(self, kube: Kube, release_namespace: str, pool: str) -> None:
        self._namespace = kube.namespace
        self._core: Any = client.CoreV1Api()
        secrets: list[Any] = self._core.list_namespaced_secret(release_namespace).items
        [keys] = [secret for secret in secrets if secret.metadata.name.endswith("-host-keys")]
        key = HostKey(base64.b64decode(keys.data[FILE]).strip())
        self.token = key.token(ObjectKey(kube.namespace, pool))

    def report(self, pod: str) -> Object:
        """Return a pod's report."""
        return self._ask("GET", pod, "report")

    def sleep(self, pod: str, model: str) -> None:
        """Put a model to sleep with its image in memory, and wait until it sleeps."""
        body = {"operation": uuid.uuid4().hex, "level": "InHost"}
        self._ask("POST", pod, f"models/{self._namespace}/{model}/sleep", json=body)
        until(
            f"{model} asleep on {pod}",
            lambda: self.entry(pod, model)["state"] == "InHost",
            timeout=SLEEP_SECONDS,
            state=lambda: self.entry(pod, model),
        )

    def entry(self, pod: str, model: str) -> Object:
        """Return the entry of one model in a pod's report."""
        [found] = [entry for entry in self.report(pod)["models"] if entry["name"] == model]
        return dict(found)

    def _ask(self, method: str, pod: str, path: str, **options: Any) -> Object:
        address = self._core.read_namespaced_pod(pod, self._namespace).status.pod_ip
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = httpx.request(
            method, f"http://{address}:{PORT}/host/v1/{path}", headers=headers, timeout=30, **options
        )
        answer.raise_for_status()
        return dict(answer.json() or {})
