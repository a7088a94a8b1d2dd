"""Render the chart with the real Helm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "plimsoll"
KUBERNETES = "1.34.3"

Object = dict[str, Any]


class NoHelmError(Exception):
    """Helm was not found; the message says where to get it."""


class RefusedError(Exception):
    """Helm failed; the message is its output."""


def find_helm() -> str:
    """Return the path of Helm: PLIMSOLL_HELM, the one on the PATH, or the one that `make check` built."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plimsoll" / "cluster"
    built = sorted(Path(os.environ.get("PLIMSOLL_CLUSTER_CACHE") or cache).glob("bin/helm-*/helm"))
    found = os.environ.get("PLIMSOLL_HELM") or shutil.which("helm") or (str(built[-1]) if built else None)
    if found is None:
        raise NoHelmError("no helm: put it on the PATH, name it in PLIMSOLL_HELM, or let `make check` build it")
    return found


def helm(*arguments: str, stdin: str = "") -> str:
    """Run Helm and return its output. Raises NoHelmError and RefusedError."""
    done = subprocess.run([find_helm(), *arguments], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RefusedError(done.stderr)
    return done.stdout


def render(
    values: Object,
    chart: Path = CHART,
    *,
    release: str = "pl",
    namespace: str = "serving",
    kubernetes: str = KUBERNETES,
) -> list[Object]:
    """Return the objects that the chart renders with these values. Raises NoHelmError and RefusedError."""
    command = ["template", release, str(chart), f"--namespace={namespace}", f"--kube-version={kubernetes}"]
    output = helm(*command, "--values=-", stdin=yaml.safe_dump(values))
    return [document for document in yaml.safe_load_all(output) if document]
