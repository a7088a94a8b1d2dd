"""KEDA and Kubernetes' autoscaler as processes, which scale objects by their scale subresource.

KEDA's operator polls numbers and wakes objects without replicas. Its adapter serves the numbers to the API server as an
aggregated API, from which the horizontal pod autoscaler reads them.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml
from operator_support.apiserver import ADMIN, ApiServer, Missing, free_port, until
from operator_support.direct import Direct
from operator_support.objects import Json

from cluster.keda import ADAPTER, OPERATOR, definitions
from cluster.layout import find_layout
from cluster.shell import DIE_WITH_PARENT

NAMESPACE, SERVICE = "keda", "keda-metrics-apiserver"
EXTERNAL = "external.metrics.k8s.io"
FRONT_PROXY = "front-proxy"


@dataclass(frozen=True)
class KedaPrograms:
    """Paths of the programs, and of the folder with the CRDs."""

    operator: Path
    adapter: Path
    definitions: Path


def find_keda() -> KedaPrograms:
    """Return the programs. Raise Missing."""
    layout = find_layout(os.environ, Path.home())
    found = KedaPrograms(OPERATOR.path(layout), ADAPTER.path(layout), definitions(layout))
    if not all(path.exists() for path in (found.operator, found.adapter, found.definitions)):
        raise Missing("needs KEDA: `python3 e2e/cluster keda` builds it")
    return found


@dataclass(frozen=True)
class Certificates:
    """One authority, and one certificate for localhost that all processes use."""

    folder: Path

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of an API server that forwards requests to an aggregated one."""
        return (
            f"--requestheader-client-ca-file={self.folder / 'ca.crt'}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={self.folder / 'tls.crt'}",
            f"--proxy-client-key-file={self.folder / 'tls.key'}",
        )


def make_certificates(folder: Path) -> Certificates:
    """Write certificates into a new folder."""
    folder.mkdir()
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    _openssl(folder, "req", "-x509", *key, "-subj", "/CN=tests", "-keyout", "ca.key", "-out", "ca.crt")
    own = ("-CA", "ca.crt", "-CAkey", "ca.key", "-addext", names, "-addext", "basicConstraints=critical,CA:FALSE")
    subject = ("-subj", f"/CN={FRONT_PROXY}", "-keyout", "tls.key", "-out", "tls.crt")
    _openssl(folder, "req", "-x509", *key, *own, *subject)
    return Certificates(folder)


def _openssl(folder: Path, *argv: str) -> None:
    subprocess.run(["openssl", *argv], check=True, capture_output=True, cwd=folder)


@contextmanager
def running_keda(server: ApiServer, programs: KedaPrograms, certificates: Certificates) -> Iterator[None]:
    """Run KEDA and the autoscaler, and wait until they respond."""
    folder, metrics = server.folder, free_port()
    kubeconfig = str(server.kubeconfig(ADMIN))
    environment = {"KUBECONFIG": kubeconfig, "WATCH_NAMESPACE": "", "POD_NAMESPACE": NAMESPACE}
    environment |= {"KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE}
    port = free_port()
    operator = [
        str(programs.operator),
        f"--cert-dir={certificates.folder}",
        f"--metrics-service-bind-address=127.0.0.1:{metrics}",
        "--metrics-bind-address=0",
        f"--health-probe-bind-address=127.0.0.1:{free_port()}",
        "--enable-webhook-patching=false",
        "--enable-apiservice-patching=false",
    ]
    adapter = [
        str(programs.adapter),
        f"--cert-dir={certificates.folder}",
        f"--tls-cert-file={certificates.folder / 'tls.crt'}",
        f"--tls-private-key-file={certificates.folder / 'tls.key'}",
        f"--metrics-service-address=localhost:{metrics}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--port={free_port()}",
        *(f"--{whose}-kubeconfig={kubeconfig}" for whose in ("lister", "authentication", "authorization")),
    ]
    autoscaler = [
        str(server.programs.kube),
        "kube-controller-manager",
        f"--kubeconfig={kubeconfig}",
        "--controllers=horizontal-pod-autoscaler-controller",
        "--horizontal-pod-autoscaler-sync-period=1s",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={free_port()}",
        f"--cert-dir={folder / 'controllers'}",
    ]
    with ExitStack() as stack, Direct(server.url, ADMIN, NAMESPACE) as admin:
        _install(admin, programs.definitions, port)
        for name, command in {"keda": operator, "keda-adapter": adapter, "autoscaler": autoscaler}.items():
            stack.enter_context(_spawned(command, environment, folder / f"{name}.log"))
        assert until(lambda: _is_available(admin)), (folder / "keda-adapter.log").read_text()[-3000:]
        yield


@contextmanager
def _spawned(command: list[str], environment: Mapping[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as said:
        command = [*DIE_WITH_PARENT, *command]
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=said, stderr=said, cwd=log.parent)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _install(admin: Direct, definitions: Path, port: int) -> None:
    admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for path in sorted(definitions.glob("*.yaml")):
        kinds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        admin.ask("POST", kinds, yaml.safe_load(path.read_text()))
    service = {"metadata": {"name": SERVICE}, "spec": {"type": "ExternalName", "externalName": "localhost"}}
    admin.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/services", service)
    spec = {"group": EXTERNAL, "version": "v1beta1", "insecureSkipTLSVerify": True, "groupPriorityMinimum": 100}
    spec |= {"versionPriority": 100, "service": {"namespace": NAMESPACE, "name": SERVICE, "port": port}}
    body = {"metadata": {"name": f"v1beta1.{EXTERNAL}"}, "spec": spec}
    admin.ask("POST", "/apis/apiregistration.k8s.io/v1/apiservices", body)


def _is_available(admin: Direct) -> bool:
    item = admin.ask("GET", f"/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.{EXTERNAL}")
    conditions = item.get("status", {}).get("conditions", ())
    return any(c["type"] == "Available" and c["status"] == "True" for c in conditions)


@dataclass
class Prometheus:
    """A stub that returns one vector of `value` for every query; `asked` has the queries."""

    url: str
    value: float
    asked: list[str]


@contextmanager
def serving_prometheus() -> Iterator[Prometheus]:
    """Serve the stub on loopback."""
    found = Prometheus("", 0.0, [])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            result = [{"metric": {}, "value": [0, str(found.value)]}]
            body = {"status": "success", "data": {"resultType": "vector", "result": result}}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def scaled_object(name: str, prometheus: Prometheus, **more: object) -> Json:
    """Return a ScaledObject of a ModelDeployment: no replicas without requests, one for every two, at most four."""
    trigger = {"serverAddress": prometheus.url, "query": "waiting", "threshold": "2", "activationThreshold": "0"}
    return scaled_by(name, {"type": "prometheus", "metadata": trigger}, **more)


def scaled_by(name: str, trigger: Json, **more: object) -> Json:
    """Return a ScaledObject of a ModelDeployment with any trigger."""
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": target(name),
            "pollingInterval": 1,
            "cooldownPeriod": 1,
            "minReplicaCount": 0,
            "maxReplicaCount": 4,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": AT_ONCE}},
            "triggers": [trigger],
            **more,
        },
    }


AT_ONCE = {"scaleDown": {"stabilizationWindowSeconds": 0}}


def target(name: str) -> Json:
    """Return the reference by which autoscalers find a ModelDeployment."""
    return {"apiVersion": "plimsoll.dev/v1alpha1", "kind": "ModelDeployment", "name": name}


def autoscaler(name: str, metric: str, scaled: str) -> Json:
    """Return a HorizontalPodAutoscaler of a ModelDeployment, with a metric of a ScaledObject."""
    selector = {"matchLabels": {"scaledobject.keda.sh/name": scaled}}
    external = {
        "metric": {"name": metric, "selector": selector},
        "target": {"type": "AverageValue", "averageValue": "2"},
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": target(name),
            "minReplicas": 1,
            "maxReplicas": 5,
            "metrics": [{"type": "External", "external": external}],
            "behavior": AT_ONCE,
        },
    }
