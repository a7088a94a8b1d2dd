"""Renders the chart with the real Helm; without one, the tests that need it are skipped."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "plimsoll"
KUBERNETES = "1.34.3"

Object = dict[str, Any]
Render = Callable[[Object], list[Object]]


class RefusedError(Exception):
    """Helm refused; the message is what it said."""


def find_helm() -> str | None:
    """The binary that PLIMSOLL_HELM names, the one on the PATH, or the one that `make check` has built."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plimsoll" / "cluster"
    built = sorted(Path(os.environ.get("PLIMSOLL_CLUSTER_CACHE") or cache).glob("bin/helm-*/helm"))
    return os.environ.get("PLIMSOLL_HELM") or shutil.which("helm") or (str(built[-1]) if built else None)


@pytest.fixture(scope="session")
def helm() -> Callable[..., str]:
    """Runs Helm with these arguments and returns what it prints; raises RefusedError."""
    binary = find_helm()
    if binary is None:
        pytest.skip("no helm: put it on the PATH, name it in PLIMSOLL_HELM, or let `make check` build it")

    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run([binary, *arguments], input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RefusedError(done.stderr)
        return done.stdout

    return run


@pytest.fixture(scope="session")
def render(helm: Callable[..., str]) -> Render:
    """The objects that the chart makes of these values, in release `pl` in namespace `serving`."""

    def objects(values: Object, chart: Path = CHART) -> list[Object]:
        command = ["template", "pl", str(chart), "--namespace=serving", f"--kube-version={KUBERNETES}"]
        output = helm(*command, "--values=-", stdin=yaml.safe_dump(values))
        return [document for document in yaml.safe_load_all(output) if document]

    return objects


@pytest.fixture(scope="session")
def refused() -> type[Exception]:
    """What `helm` and `render` raise."""
    return RefusedError
