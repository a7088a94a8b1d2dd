"""The cluster's objects for scenarios: apply, read, wait, delete."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from kubernetes import client, dynamic
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import NotFoundError

from harness.kubectl import kubectl
from harness.waiting import until

Object = dict[str, Any]
GROUP = "plimsoll.dev/v1alpha1"
PREFIX = "e2e-"
OWNED = "plimsoll.dev/model-deployment"
READY_SECONDS = 900
"""The first pod on a node pulls an image of several gigabytes."""
GONE_SECONDS = 300
"""Deleting a namespace with a thousand objects takes minutes."""
OOM_KILLS = "cat /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events 2>/dev/null || true"
"""Command that prints the OOM counters of a container's control group, of version 1 or 2."""


class Kube:
    """One namespace of one cluster."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._core: Any = client.CoreV1Api()
        self._api: Any = client.ApiClient()
        discover: Any = dynamic.DynamicClient
        self._dynamic: Any = discover(self._api)

    def create_namespace(self) -> None:
        """Create the namespace with Pod Security "restricted"."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self._core.create_namespace({"metadata": {"name": self.namespace, "labels": labels}})

    def delete_namespace(self) -> None:
        """Delete the namespace, without waiting."""
        self._core.delete_namespace(self.namespace)

    def wait_names_free(self) -> None:
        """Wait until no model in the namespace exists, so that another namespace can have their names."""
        until("its models gone", lambda: not self.models(), timeout=GONE_SECONDS, state=self.models)

    def apply(self, manifest: Mapping[str, Any]) -> Object:
        """Apply an object like `kubectl apply --server-side --force-conflicts`."""
        resource = self._resource(manifest["apiVersion"], manifest["kind"])
        answer = self._dynamic.server_side_apply(
            resource,
            body=dict(manifest),
            name=manifest["metadata"]["name"],
            namespace=self.namespace,
            field_manager="e2e",
            force_conflicts=True,
        )
        found: Object = answer.to_dict()
        return found

    def model(self, name: str) -> Object:
        """Return a ModelDeployment."""
        resource = self._resource(GROUP, "ModelDeployment")
        found: Object = self._dynamic.get(resource, name=name, namespace=self.namespace).to_dict()
        return found

    def scale(self, name: str, replicas: int) -> None:
        """Set replicas through the scale subresource, like `kubectl scale` and autoscalers."""
        client.CustomObjectsApi().patch_namespaced_custom_object_scale(
            "plimsoll.dev", "v1alpha1", self.namespace, "modeldeployments", name, {"spec": {"replicas": replicas}}
        )

    def models(self) -> dict[str, Object]:
        """Return the ModelDeployments of the namespace by name."""
        resource = self._resource(GROUP, "ModelDeployment")
        listed = self._dynamic.get(resource, namespace=self.namespace).to_dict()["items"]
        return {item["metadata"]["name"]: item for item in listed}

    def delete_model(self, name: str) -> None:
        """Delete a ModelDeployment, if it exists; the objects that it owns follow."""
        with contextlib.suppress(NotFoundError):
            self._dynamic.delete(self._resource(GROUP, "ModelDeployment"), name=name, namespace=self.namespace)

    def orphans(self) -> list[str]:
        """Return the names of pods and Services whose owner does not exist, or has another uid."""
        pools = self._dynamic.get(self._resource(GROUP, "RuntimePool"), namespace=self.namespace).to_dict()["items"]
        alive = {item["metadata"]["uid"] for item in [*self.models().values(), *pools]}
        found = [
            *self._core.list_namespaced_pod(self.namespace).items,
            *self._core.list_namespaced_service(self.namespace).items,
        ]
        return [
            item.metadata.name
            for item in found
            if any(owner.uid not in alive for owner in item.metadata.owner_references or ())
        ]

    def pods(self, name: str) -> list[Object]:
        """Return the runtime pods of a ModelDeployment, including terminating ones."""
        answer = self._core.list_namespaced_pod(self.namespace, label_selector=f"{OWNED}={name}")
        return [self._api.sanitize_for_serialization(pod) for pod in answer.items]

    def ready_pods(self, name: str) -> list[str]:
        """Return the names of a ModelDeployment's pods that are ready and not terminating."""
        return [p["metadata"]["name"] for p in self.pods(name) if is_ready(p)]

    def services(self) -> list[str]:
        """Return the names of the namespace's Services."""
        return [s.metadata.name for s in self._core.list_namespaced_service(self.namespace).items]

    def conditions(self) -> dict[str, dict[str, Object]]:
        """Return the conditions of the current generation of all ModelDeployments, by name and type."""
        return {name: _present(item) for name, item in self.models().items()}

    def events(self, name: str) -> list[tuple[str, str, str]]:
        """Return (type, reason, message) of the Kubernetes events about objects of this name, of any kind."""
        answer = self._core.list_namespaced_event(self.namespace, field_selector=f"involvedObject.name={name}")
        return [(e.type, e.reason, e.message) for e in answer.items]

    def condition(self, name: str, kind: str) -> Object | None:
        """Return a ModelDeployment's condition of type `kind`; None if it is missing or of an earlier generation."""
        return _present(self.model(name)).get(kind)

    def wait_condition(self, name: str, kind: str, status: str, *, timeout: float = READY_SECONDS) -> Object:
        """Wait until a condition has a status, and return it."""

        def look() -> Object | None:
            condition = self.condition(name, kind)
            return condition if condition and condition["status"] == status else None

        return until(f"{name} {kind}={status}", look, timeout=timeout, state=lambda: self.describe(name))

    def wait_settled(self, name: str, pods: int, *, timeout: float = READY_SECONDS) -> None:
        """Wait until exactly `pods` pods exist, all ready, and the object is not Progressing."""

        def look() -> bool:
            done = self.condition(name, "Progressing")
            settled = done is not None and done["status"] == "False"
            return settled and len(self.pods(name)) == len(self.ready_pods(name)) == pods

        until(f"{name} settled with {pods} pods", look, timeout=timeout, state=lambda: self.describe(name))

    def model_hosts(self) -> list[Object]:
        """Return the ModelHosts of the namespace."""
        found: list[Object] = self._dynamic.get(self._resource(GROUP, "ModelHost"), namespace=self.namespace).to_dict()[
            "items"
        ]
        return found

    def address(self, pod: str) -> str:
        """Return a pod's address."""
        return str(self._core.read_namespaced_pod(pod, self.namespace).status.pod_ip)

    def wait_running(self, pod: str) -> None:
        """Wait until a pod is Running, for pods that the scenario has created itself."""

        def look() -> bool:
            return bool(self._core.read_namespaced_pod(pod, self.namespace).status.phase == "Running")

        until(f"{pod} running", look, timeout=READY_SECONDS)

    def image_digest(self, pod: str) -> str:
        """Return `sha256:...` of the image that a pod's container runs."""
        status = self._core.read_namespaced_pod(pod, self.namespace).status.container_statuses[0]
        return str(status.image_id).rpartition("@")[2]

    def restarts(self, *names: str) -> dict[str, int]:
        """Return the number of container restarts of these pods."""
        return {
            name: sum(
                c.restart_count for c in self._core.read_namespaced_pod(name, self.namespace).status.container_statuses
            )
            for name in names
        }

    def out_of_memory(self, *names: str) -> dict[str, int]:
        """Return the number of processes that the kernel has OOM-killed in each of these pods."""
        return {name: _oom_kills(self.execute(name, "sh", "-c", OOM_KILLS)) for name in names}

    def execute(self, pod: str, *command: str) -> str:
        """Run a command in a pod's first container and return its output."""
        return kubectl("exec", "--namespace", self.namespace, pod, "--", *command)

    def log(self, pod: str) -> str:
        """Return the log of a pod's first container; each line begins with its time."""
        return kubectl("logs", "--namespace", self.namespace, "--timestamps", pod)

    def delete_pod(self, pod: str) -> None:
        """Delete a pod like `kubectl delete pod`, without waiting: it drains first."""
        self._core.delete_namespaced_pod(pod, self.namespace)

    def kill_now(self, pod: str) -> None:
        """Delete a pod like a crash: SIGKILL, without grace period or draining."""
        self._core.delete_namespaced_pod(pod, self.namespace, grace_period_seconds=0)

    def names_with_label(self, label: str) -> list[str]:
        """Return kind/name of every pod, Service, Secret and ConfigMap of the namespace with a label."""
        lists = {
            "Pod": self._core.list_namespaced_pod,
            "Service": self._core.list_namespaced_service,
            "Secret": self._core.list_namespaced_secret,
            "ConfigMap": self._core.list_namespaced_config_map,
        }
        return [
            f"{kind}/{item.metadata.name}"
            for kind, listed in lists.items()
            for item in listed(self.namespace, label_selector=label).items
        ]

    def nodes_of(self, name: str) -> list[str]:
        """Return the name of the node of each ready pod of a ModelDeployment, once for each pod."""
        return [p["spec"]["nodeName"] for p in self.pods(name) if is_ready(p)]

    def describe(self, name: str) -> str:
        """Return status, pods and events of a ModelDeployment for an error message."""
        try:
            status = self.model(name).get("status")
        except ApiException as error:
            status = {"error": error.reason}
        pods = {p["metadata"]["name"]: p.get("status", {}).get("containerStatuses") for p in self.pods(name)}
        return f"status: {status}\npods: {pods}\nevents: {self.events(name)}"

    def _resource(self, api_version: str, kind: str) -> Any:
        return self._dynamic.resources.get(api_version=api_version, kind=kind)


@contextlib.contextmanager
def fresh_namespace() -> Iterator[Kube]:
    """Yield a namespace with a new random name, and delete it afterwards."""
    kube = Kube(f"{PREFIX}{uuid.uuid4().hex[:8]}")
    kube.create_namespace()
    try:
        yield kube
    finally:
        kube.delete_namespace()


def _present(model: Object) -> dict[str, Object]:
    """Return the conditions of the current generation, by type."""
    generation = model["metadata"]["generation"]
    conditions = model.get("status", {}).get("conditions", [])
    return {c["type"]: dict(c) for c in conditions if c.get("observedGeneration") == generation}


def _oom_kills(text: str) -> int:
    [found] = [int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")]
    return found


def is_ready(pod: Object) -> bool:
    """Return whether a pod is ready and not terminating."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
