"""The command lines of a laptop run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_kernels.whole_file import write_whole
from plimsoll_runtime.local import crd
from plimsoll_runtime.local.child import Launch
from plimsoll_runtime.local.model import LocalModel
from plimsoll_runtime.local.ports import LOOPBACK, free_port
from plimsoll_runtime.local.run_folder import RunFolder
from plimsoll_runtime.local.together import shared_environment, shared_stores

# -P: the current folder may hold a file named like one of the modules that are imported.
PYTHON = (sys.executable, "-P")
SERVE = (*PYTHON, "-m", "plimsoll_runtime", "serve")
HOST = (*PYTHON, "-m", "plimsoll_runtime", "host")
GATEWAY = (*PYTHON, "-m", "plimsoll_gateway")
HOLD_SECONDS = 3600
"""How long a request waits for its model: on a laptop it may have to be downloaded first, and nobody else is there."""
TURNS = ("--minimum-residency", "1", "--service-slice", "2", "--patience", "1")
"""One person asks one model after the other, and should not wait for the turn of one that nobody asks any more."""


@dataclass(frozen=True, slots=True)
class RuntimeLaunch:
    """Makes the command of one replica; each start gets a free port."""

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
            ),
            url=f"http://{LOOPBACK}:{port}",
            log=self.folder.log(self.slot),
            last_words=self.folder.last_words(self.slot),
            environment={**dict(self.model.environment), "PLIMSOLL_FINDINGS": str(findings)},
        )


@dataclass(frozen=True, slots=True)
class GatewayLaunch:
    """Makes the command of the gateway, on a socket that is open already."""

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
    """Makes the command of the process that models share. Its API, and the token for it, are for `plimsoll status`."""

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
    """The objects of the models, as `plimsoll host` reads them."""
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
    """The cores for each replica where several share the machine; None leaves one alone with all of them."""
    total = sum(model.replicas for model in models if not model.in_host)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // total) if total > 1 else None
