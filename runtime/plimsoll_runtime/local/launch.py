"""The command lines of a laptop run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.local.child import Launch
from plimsoll_runtime.local.model import LocalModel
from plimsoll_runtime.local.ports import LOOPBACK, free_port
from plimsoll_runtime.local.state import RunState

# -P: the current folder may hold a file named like one of the modules that are imported.
PYTHON = (sys.executable, "-P")
SERVE = (*PYTHON, "-m", "plimsoll_runtime", "serve")
GATEWAY = (*PYTHON, "-m", "plimsoll_gateway")


@dataclass(frozen=True, slots=True)
class RuntimeLaunch:
    """Makes the command of one replica; each start gets a free port."""

    model: LocalModel
    slot: str
    threads: int | None
    state: RunState
    serve: Sequence[str] = SERVE

    def __call__(self) -> Launch:
        port = free_port()
        threads = () if self.threads is None else ("--threads", str(self.threads))
        return Launch(
            command=(*self.serve, *self.model.arguments, *threads, "--host", LOOPBACK, "--port", str(port)),
            url=f"http://{LOOPBACK}:{port}",
            log=self.state.log(self.slot),
            last_words=self.state.last_words(self.slot),
            environment=dict(self.model.environment),
        )


@dataclass(frozen=True, slots=True)
class GatewayLaunch:
    """Makes the command of the gateway, on a socket that is open already."""

    slot: str
    url: str
    fd: int
    drain_seconds: float
    state: RunState

    def __call__(self) -> Launch:
        return Launch(
            command=(
                *GATEWAY,
                *("--table", str(self.state.table), "--fd", str(self.fd)),
                *("--lame-duck-seconds", "0", "--drain-seconds", str(self.drain_seconds)),
            ),
            url=self.url,
            log=self.state.log(self.slot),
            last_words=self.state.last_words(self.slot),
            pass_fds=(self.fd,),
        )


def threads_each(models: Sequence[LocalModel]) -> int | None:
    """The cores for each replica where several share the machine; None leaves one alone with all of them."""
    total = sum(model.replicas for model in models)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // total) if total > 1 else None
