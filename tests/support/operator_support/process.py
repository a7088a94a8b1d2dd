"""The operator as a separate process, with its metrics."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from operator_support.apiserver import RELEASE_NAMESPACE, ApiServer, free_port
from operator_support.direct import Direct

LEASE = "plimsoll-operator"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{RELEASE_NAMESPACE}/leases"


@dataclass
class Running:
    """A process, and the port of its health and metrics."""

    process: subprocess.Popen[bytes]
    port: int

    def metric(self, name: str) -> float:
        """Return a metric with the labels in the name; -1 before the process responds."""
        return self.metrics(name).get(name, -1.0)

    def metrics(self, prefix: str) -> dict[str, float]:
        """Return the metrics with this prefix, with their labels; none before the process responds."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
                lines = answer.read().decode().splitlines()
        except (urllib.error.URLError, OSError):
            return {}
        found = (line.rsplit(" ", 1) for line in lines if line.startswith(prefix))
        return {name: float(value) for name, value in found}


@contextmanager
def running_operator(
    server: ApiServer,
    user: str,
    folder: Path,
    *,
    namespace: str | None,
    more: Sequence[str] = (),
    port: int | None = None,
) -> Iterator[Running]:
    """Run an operator process for one namespace or for all, with `more` options, and stop it afterwards. `port` is the
    one of its metrics; a free one by default.
    """
    port = port or free_port()
    command = [sys.executable, "-m", "plimsoll_operator", "--runtime-image", "registry.example/runtime:1"]
    command += ["--namespace", namespace] if namespace is not None else ["--all-namespaces"]
    command += ["--lease-namespace", RELEASE_NAMESPACE, "--health-port", str(port), *more]
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig(user)), "POD_NAME": user}
    with (folder / f"{user}.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield Running(process, port)
        finally:
            process.kill()
            process.wait()


@contextmanager
def lease(admin: Direct) -> Iterator[None]:
    """Create the chart's Lease, without a holder, and delete it afterwards."""
    admin.ask("POST", LEASES, {"metadata": {"name": LEASE}})
    yield
    admin.ask("DELETE", f"{LEASES}/{LEASE}")
