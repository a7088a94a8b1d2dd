"""The operator and the gateway as installed by Helm: their pods, Services and logs."""

from __future__ import annotations

from typing import Any

from kubernetes import client

from harness.kubectl import kubectl


class Release:
    """A Helm release. Components are "operator" and "gateway"."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._core: Any = client.CoreV1Api()

    def component_pods(self, component: str) -> list[str]:
        """Return the names of the component's running pods, except terminating ones."""
        return [pod.metadata.name for pod in self._pods(component) if pod.status.phase == "Running"]

    def restarts(self, component: str) -> dict[str, int]:
        """Return the number of container restarts of each of the component's pods, by pod name."""
        return {
            pod.metadata.name: sum(status.restart_count for status in pod.status.container_statuses or ())
            for pod in self._pods(component)
        }

    def ready_pods(self, component: str) -> list[str]:
        """Return the names of the component's ready pods, except terminating ones."""
        return [
            pod.metadata.name
            for pod in self._pods(component)
            if any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())
        ]

    def address(self, pod: str) -> str:
        """Return a pod's address."""
        return str(self._core.read_namespaced_pod(pod, self.namespace).status.pod_ip)

    def account(self, component: str) -> str:
        """Return the name of the ServiceAccount of the component's pods."""
        return str(self._pods(component)[0].spec.service_account_name)

    def image(self, component: str) -> str:
        """Return the image in the specs of the component's pods."""
        return str(self._pods(component)[0].spec.containers[0].image)

    def image_digest(self, component: str) -> str:
        """Return `sha256:...` of the image that the component's pods run."""
        return str(self._pods(component)[0].status.container_statuses[0].image_id).rpartition("@")[2]

    def memory_peaks(self, component: str) -> dict[str, int]:
        """Return the peak memory of the main process in each of the component's running pods, in MiB by pod name."""
        return {pod: _peak(self.namespace, pod) for pod in self.component_pods(component)}

    def kill_now(self, pod: str) -> None:
        """Delete a pod like a crash: SIGKILL, without grace period."""
        self._core.delete_namespaced_pod(pod, self.namespace, grace_period_seconds=0)

    def scale_component(self, component: str, replicas: int) -> None:
        """Set the replicas of the component's Deployment."""
        apps: Any = client.AppsV1Api()
        [deployment] = apps.list_namespaced_deployment(self.namespace, label_selector=_label(component)).items
        body = {"spec": {"replicas": replicas}}
        apps.patch_namespaced_deployment_scale(deployment.metadata.name, self.namespace, body)

    def service_address(self, component: str) -> tuple[str, int]:
        """Return host and port of the component's Service for requests inside the cluster (not the one for metrics)."""
        services = self._core.list_namespaced_service(self.namespace, label_selector=_label(component)).items
        [(host, port)] = [
            (service.spec.cluster_ip, port.port)
            for service in services
            for port in service.spec.ports
            if port.name == "http"
        ]
        return host, port

    def log_ends(self, lines: int = 40) -> str:
        """Return the last lines of every pod of the release, for an error message."""
        pods = [pod.metadata.name for component in ("operator", "gateway") for pod in self._pods(component)]
        return "\n".join(
            f"{pod}:\n{self._core.read_namespaced_pod_log(pod, self.namespace, tail_lines=lines)}" for pod in pods
        )

    def _pods(self, component: str) -> list[Any]:
        listed = self._core.list_namespaced_pod(self.namespace, label_selector=_label(component)).items
        return [pod for pod in listed if pod.metadata.deletion_timestamp is None]


def _label(component: str) -> str:
    return f"app.kubernetes.io/component={component}"


def _peak(namespace: str, pod: str) -> int:
    status = kubectl("exec", "--namespace", namespace, pod, "--", "cat", "/proc/1/status")
    [kibibytes] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
    return kibibytes // 1024
