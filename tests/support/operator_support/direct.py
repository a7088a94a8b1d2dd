"""A test's own requests to the API server as administrator, and the actions of a kubelet."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import httpx
from operator_support.objects import Json

from plimsoll_operator.spec.identity import API_VERSION, CONTAINER, KIND, selector
from plimsoll_operator.status.events import CONTROLLER

MODELS = f"/apis/{API_VERSION}/namespaces/{{}}/modeldeployments"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class Refused(Exception):
    """The API server rejected a request, with its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Direct:
    """Requests in one namespace. Every method raises Refused."""

    def __init__(self, url: str, token: str, namespace: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=url, headers=headers, verify=False, timeout=120)
        self.namespace = namespace

    def __enter__(self) -> Direct:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str) -> Json:
        """Send one request."""
        answer = self._client.request(method, path, json=body, headers={"Content-Type": kind}, params=query)
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        found: Json = answer.json() if is_json else {"message": answer.text}
        if not answer.is_success:
            raise Refused(answer.status_code, found.get("message", ""))
        return found

    def create_model(self, name: Any, spec: Any, **metadata: Any) -> Json:
        """Create a model with strict validation, like `kubectl create`."""
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name, **metadata}, "spec": spec}
        return self.create_object(body)

    def create_object(self, body: Any) -> Json:
        """Create a ModelDeployment from its whole body."""
        return self.ask("POST", self._models(), body, fieldValidation="Strict")

    def create_pool(self, name: str, spec: Any) -> Json:
        """Create a RuntimePool with strict validation, like `kubectl create`."""
        body = {"apiVersion": API_VERSION, "kind": "RuntimePool", "metadata": {"name": name}, "spec": spec}
        return self.ask("POST", self._of_ours("runtimepools"), body, fieldValidation="Strict")

    def pool(self, name: str) -> Json:
        return self.ask("GET", self._of_ours("runtimepools", name))

    def change_pool(self, name: str, **spec: Any) -> Json:
        """Merge into a pool's spec."""
        return self.ask("PATCH", self._of_ours("runtimepools", name), {"spec": spec}, MERGE)

    def delete_pool(self, name: str) -> None:
        self.ask("DELETE", self._of_ours("runtimepools", name))

    def hosts(self) -> dict[str, Json]:
        """Return the ModelHosts by name."""
        return {item["metadata"]["name"]: item for item in self.ask("GET", self._of_ours("modelhosts"))["items"]}

    def model(self, name: str) -> Json:
        return self.ask("GET", self._models(name))

    def change_model(self, name: str, **spec: Any) -> Json:
        """Merge into a model's spec."""
        return self.ask("PATCH", self._models(name), {"spec": spec}, MERGE)

    def apply_condition(self, name: str, kind: str, *, manager: str) -> None:
        """Apply another manager's condition to an object's status."""
        condition = {"type": kind, "status": "True", "reason": "Checked", "message": "", "observedGeneration": 1}
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        body = {"apiVersion": API_VERSION, "kind": KIND, "status": {"conditions": [condition]}}
        path = f"{self._models(name)}/status"
        self.ask("PATCH", path, body, "application/apply-patch+yaml", fieldManager=manager, force="true")

    def delete_namespace(self) -> None:
        """Delete the namespace, which then stays terminating, because no controller empties it."""
        self.ask("DELETE", f"/api/v1/namespaces/{self.namespace}")

    def delete_model(self, name: str) -> None:
        self.ask("DELETE", self._models(name), {"propagationPolicy": "Background"})

    def delete_ours(self) -> None:
        """Delete all objects of our kinds."""
        for plural in ("modeldeployments", "runtimepools", "modelhosts"):
            self.ask("DELETE", self._of_ours(plural))

    def pods(self, name: str) -> list[Json]:
        found: list[Json] = self.ask("GET", self._core("pods"), labelSelector=selector(name))["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"] + pod["metadata"]["name"]))

    def revisions(self, name: str) -> list[Json]:
        """Return the ControllerRevisions of an object by number."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/controllerrevisions"
        found: list[Json] = self.ask("GET", path, labelSelector=selector(name))["items"]
        return sorted(found, key=lambda item: int(item["revision"]))

    def service(self, name: str) -> Json:
        return self.ask("GET", self._core("services", name))

    def budget(self, name: str) -> Json:
        return self.ask("GET", self._budget(name))

    def delete_budget(self, name: str) -> None:
        self.ask("DELETE", self._budget(name))

    def create_budget(self, name: str) -> Json:
        """Create a user's own budget."""
        spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "theirs"}}}
        path = self._budget("").rstrip("/")
        body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
        return self.ask("POST", path, body)

    def create_service(self, name: str) -> Json:
        """Create a user's own Service."""
        spec = {"ports": [{"port": 80}], "selector": {"app": "theirs"}}
        return self.ask("POST", self._core("services"), {"metadata": {"name": name}, "spec": spec})

    def change_service(self, name: str, **spec: Any) -> Json:
        return self.ask("PATCH", self._core("services", name), {"spec": spec}, MERGE)

    def delete_service(self, name: str) -> None:
        self.ask("DELETE", self._core("services", name))

    def events(self, name: str) -> list[tuple[str, str, str]]:
        """Return (type, reason, note) of the operator's events about an object, oldest first.

        The API server's own events (ClusterIPNotAllocated) about a Service of the same name are left out.
        """
        found = self.ask("GET", f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")["items"]
        ours = [e for e in found if e["regarding"]["name"] == name and e.get("reportingController") == CONTROLLER]
        ours.sort(key=lambda e: str(e["eventTime"]))
        return [(e["type"], e["reason"], e["note"]) for e in ours]

    def create_quota(self, name: str, **hard: int) -> None:
        """Create a ResourceQuota, with the status that its controller would write."""
        limits = {kind: str(count) for kind, count in hard.items()}
        body = {"metadata": {"name": name}, "spec": {"hard": limits}}
        self.ask("POST", self._core("resourcequotas"), body)
        status = {"hard": limits, "used": dict.fromkeys(limits, "0")}
        self.ask("PATCH", self._core("resourcequotas", name, "status"), {"status": status}, MERGE)

    def delete_quota(self, name: str) -> None:
        self.ask("DELETE", self._core("resourcequotas", name))

    def create_pod(self, body: Json) -> Json:
        """Create a pod."""
        return self.ask("POST", self._core("pods"), body)

    def bind(self, pod: Json, node: str = "node-1") -> None:
        """Bind a pod to a node, like the scheduler."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"metadata": {"name": pod["metadata"]["name"]}, "target": target}
        self.ask("POST", self._core("pods", pod["metadata"]["name"], "binding"), body)

    def report(
        self, pod: Json, state: Json, *, ready: bool = False, restarts: int = 0, last: Json | None = None
    ) -> None:
        """Write the status of a running pod and its container, like a kubelet."""
        container = {"name": CONTAINER, "ready": ready, "restartCount": restarts, "image": "i", "imageID": "i"}
        container |= {"state": state, "lastState": last or {}}
        condition, address = {"type": "Ready", "status": str(ready)}, {"ip": "198.18.0.9"}
        status = {"phase": "Running", "conditions": [condition], "containerStatuses": [container]}
        self.write_status(pod, status | {"podIP": address["ip"], "podIPs": [address]})

    def write_status(self, pod: Json, status: Mapping[str, Any]) -> None:
        self.ask("PATCH", self._core("pods", pod["metadata"]["name"], "status"), {"status": status}, STRATEGIC)

    def end(self, pod: Json) -> None:
        """Remove a drained pod, like a kubelet."""
        self.ask("DELETE", self._core("pods", pod["metadata"]["name"]), {"gracePeriodSeconds": 0})

    def make_ready(self, name: str) -> bool:
        """Place, start and end an object's pods, like scheduler and kubelets; return whether there were any to
        change.
        """
        return sum(self._advance(pod) for pod in self.pods(name)) > 0

    def _advance(self, pod: Json) -> bool:
        try:
            return self._go_on(pod)
        except Refused as refusal:
            if refusal.code != 404:  # the operator may delete a pod after it was listed
                raise
            return True

    def _go_on(self, pod: Json) -> bool:
        if "deletionTimestamp" in pod["metadata"]:
            self.end(pod)
            return True
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ())):
            return False
        if "nodeName" not in pod["spec"]:
            self.bind(pod)
        self.report(pod, {"running": {}}, ready=True)
        return True

    def _of_ours(self, *path: str) -> str:
        return "/".join((f"/apis/{API_VERSION}/namespaces", self.namespace, *path))

    def _models(self, name: str = "") -> str:
        return f"{MODELS.format(self.namespace)}/{name}".rstrip("/")

    def _budget(self, name: str) -> str:
        return f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets/{name}"

    def _core(self, *path: str) -> str:
        return "/".join(("/api/v1/namespaces", self.namespace, *path))
