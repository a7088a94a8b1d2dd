"""The release as Helm has it: changed with other values, and put back."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

CHART = Path(__file__).parents[2] / "charts" / "plimsoll"
TIMEOUT_SECONDS = 300


def upgraded(release: str, namespace: str, *values: str) -> None:
    """`helm upgrade` with these values (`NAME=VALUE`) beside those that the release has, until all of it is ready."""
    flags = [word for value in values for word in ("--set-json" if "=[" in value else "--set", value)]
    _helm("upgrade", release, str(CHART), "--namespace", namespace, "--reuse-values", "--wait", *flags)


def rolled_back(release: str, namespace: str) -> None:
    """`helm rollback` to the revision before."""
    _helm("rollback", release, "--namespace", namespace, "--wait")


@contextlib.contextmanager
def with_values(release: str, namespace: str, *values: str) -> Iterator[None]:
    """Upgrade before the body runs, and roll back after it."""
    upgraded(release, namespace, *values)
    try:
        yield
    finally:
        rolled_back(release, namespace)


def _helm(*arguments: str) -> None:
    """Raises AssertionError with what Helm said when it fails."""
    command = ["helm", *arguments, "--timeout", f"{TIMEOUT_SECONDS}s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS + 60)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
