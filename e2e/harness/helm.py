"""Changes values of the Helm release, and restores them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

CHART = Path(__file__).parents[2] / "charts" / "plimsoll"
TIMEOUT_SECONDS = 300


def upgraded(release: str, namespace: str, *values: str) -> None:
    """Run `helm upgrade` with these values (`NAME=VALUE`) on top of the release's own, and wait until all pods are
    ready.
    """
    flags = [word for value in values for word in ("--set-json" if "=[" in value else "--set", value)]
    _helm("upgrade", release, str(CHART), "--namespace", namespace, "--reuse-values", "--wait", *flags)


def rolled_back(release: str, namespace: str) -> None:
    """Run `helm rollback` to the previous revision."""
    _helm("rollback", release, "--namespace", namespace, "--wait")


@contextlib.contextmanager
def with_values(release: str, namespace: str, *values: str) -> Iterator[None]:
    """Upgrade the release with these values (`NAME=VALUE`) on entry, and roll it back on exit."""
    upgraded(release, namespace, *values)
    try:
        yield
    finally:
        rolled_back(release, namespace)


def _helm(*arguments: str) -> None:
    """Run Helm. Raises AssertionError with its output on failure."""
    command = ["helm", *arguments, "--timeout", f"{TIMEOUT_SECONDS}s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS + 60)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
