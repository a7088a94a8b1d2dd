"""The image registry inside the cluster, with its blobs in the cache."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cluster.addresses import REGISTRY_PORT
from cluster.daemon import Daemon
from cluster.files import write
from cluster.layout import Layout
from cluster.locks import InUseError, exclusive
from cluster.machine import Machine
from cluster.packages import program
from cluster.progress import Progress
from cluster.shell import run, succeeds

REPOSITORIES = Path("docker/registry/v2/repositories")
URL = f"http://127.0.0.1:{REGISTRY_PORT}/v2/"


def configure(layout: Layout, machine: Machine) -> Path:
    """Write the registry's configuration (JSON, which is YAML)."""
    document = {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(layout.registry)}, "delete": {"enabled": True}},
        "http": {"addr": f"0.0.0.0:{REGISTRY_PORT}"},
    }
    layout.registry.mkdir(parents=True, exist_ok=True)
    return write(machine.home / "etc" / "registry.json", json.dumps(document, indent=1))


def registry(layout: Layout, machine: Machine, config: Path) -> Daemon:
    """Return the registry's daemon. While it runs it holds a shared lock on its blobs, so that `tidy` of another
    checkout does not delete them.
    """
    argv = (
        program("flock"),
        "--shared",
        "--no-fork",
        str(layout.registry),
        program("docker-registry"),
        "serve",
        str(config),
    )
    return Daemon("registry", argv, machine.log("registry"))


def tidy(layout: Layout, config: Path, progress: Progress) -> None:
    """Delete blobs without a tag, unless another checkout's registry uses the same blobs."""
    if not (layout.registry / REPOSITORIES).exists():
        return
    try:
        with exclusive(layout.registry, wait=False):
            run([program("docker-registry"), "garbage-collect", "--delete-untagged", config])
    except InUseError:
        progress.say("the registry's blobs are not tidied: another checkout's cluster uses them")


def answers(machine: Machine) -> bool:
    """Return whether the registry answers requests."""
    return succeeds(machine.enter(sys.executable, "-c", f"import urllib.request as r; r.urlopen({URL!r}, timeout=5)"))
