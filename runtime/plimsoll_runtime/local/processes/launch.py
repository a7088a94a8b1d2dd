"""Command lines and addresses of a laptop run's processes."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_kernels.whole_file import write_whole
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.local.host_sharing import shared_environment, shared_stores
from plimsoll_runtime.local.manifest import crd
from plimsoll_runtime.local.model import LocalModel
from plimsoll_runtime.local.processes.child import Launch
from plimsoll_runtime.local.run_folder import RunFolder

LOOPBACK = "127.0.0.1"


def listen(host: str, port: int) -> socket.socket:
    """Return the gateway's listening socket (port 0 selects a free port). Raises UsageError.

    This process opens the socket and passes it on, so that connections wait in it while the gateway restarts.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(_why(host, port, error)) from None


def _why(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use; choose another with --port, or stop the process that uses it "
            f"(`plimsoll down --port {port}` if it is a `plimsoll up`)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} of {host} requires root; choose one above 1023 with --port"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


def free_port() -> int:
    """Return a free loopback port. If another process takes it first, the child fails and restarts with another
    port.
    """
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def base_url(host: str, port: int) -> str:
    """Return the gateway's URL for clients on this machine."""
    shown = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


# -P: do not import modules from the current folder.
PYTHON = (sys.executable, "-P")
SERVE = (*PYTHON, "-m", "plimsoll_runtime", "serve")
HOST = (*PYTHON, "-m", "plimsoll_runtime", "host")
GATEWAY = (*PYTHON, "-m", "plimsoll_gateway")
HOLD_SECONDS = 3600
"""Seconds that a request waits for its model, which on a laptop may have to be downloaded first."""
TURNS = ("--minimum-residency", "1", "--service-slice", "2", "--patience", "1")
"""Short waits, because one user asks one model after the other: a model that is not used any more should give up its
memory quickly.
"""


@dataclass(frozen=True, slots=True)
class RuntimeLaunch:
    """Builds the command of one replica; each start uses a free port."""

    model: LocalModel
    slot: str
    threads: int | None
    folder: RunFolder
    serve: Sequence[str] = SERVE

    def __call__(self) -> Launch:
        port = free_port()
        findings = self.folder.findings(self.slot)
        findings.unlink(missing_ok=True)
        threads = () if self.threads is None else ("--threads", str(self.threads))
        return Launch(
            command=(
                *self.serve,
                *self.model.arguments,
                *self.model.stores.arguments(self.folder.claims, self.slot),
                *threads,
                *("--host", LOOPBACK, "--port", str(port)),
                *("--deployment", f"{self.model.namespace}/{self.model.name}"),
            ),
            url=f"http://{LOOPBACK}:{port}",
            log=self.folder.log(self.slot),
            last_words=self.folder.last_words(self.slot),
            environment={**dict(self.model.environment), "PLIMSOLL_FINDINGS": str(findings)},
        )


@dataclass(frozen=True, slots=True)
class GatewayLaunch:
    """Builds the command of the gateway, which inherits an open socket."""

    slot: str
    url: str
    fd: int
    drain_seconds: float
    folder: RunFolder

    def __call__(self) -> Launch:
        return Launch(
            command=(
                *GATEWAY,
                *("--table", str(self.folder.table), "--fd", str(self.fd)),
                *("--lame-duck-seconds", "0", "--drain-seconds", str(self.drain_seconds)),
            ),
            url=self.url,
            log=self.folder.log(self.slot),
            last_words=self.folder.last_words(self.slot),
            pass_fds=(self.fd,),
        )


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """Builds the command of the host process. `plimsoll status` uses its host API, with a token."""

    slot: str
    models: Sequence[LocalModel]
    options: Sequence[str]
    folder: RunFolder
    host: Sequence[str] = HOST

    def __call__(self) -> Launch:
        port, host_port = free_port(), free_port()
        access = self.folder.host_access
        access.give(f"http://{LOOPBACK}:{host_port}")
        write_whole(self.folder.models, documents(self.models).encode())
        return Launch(
            command=(
                *self.host,
                *("--models", str(self.folder.models), "--host", LOOPBACK, "--port", str(port)),
                *("--host-port", str(host_port), "--host-token-file", str(access.token_file)),
                *shared_stores(self.models).arguments(self.folder.claims, self.slot),
                *("--hold-seconds", str(HOLD_SECONDS), *self.options),
            ),
            url=f"http://{LOOPBACK}:{port}",
            log=self.folder.log(self.slot),
            last_words=self.folder.last_words(self.slot),
            environment=shared_environment(self.models),
        )


def documents(models: Sequence[LocalModel]) -> str:
    """Return the models' objects as YAML, for `plimsoll host`."""
    return "\n---\n".join(
        json.dumps(
            {
                "apiVersion": crd.api_version(),
                "kind": crd.kind(),
                "metadata": {"namespace": model.namespace, "name": model.name},
                "spec": model.spec,
            }
        )
        for model in models
    )


def threads_each(models: Sequence[LocalModel]) -> int | None:
    """Return the number of CPU cores for each replica outside the host process; None if there is at most one, which may
    use all.
    """
    total = sum(model.replicas for model in models if not model.in_host)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // total) if total > 1 else None
