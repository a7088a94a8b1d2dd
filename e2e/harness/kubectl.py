"""kubectl, where it does what no API call does by itself: drain."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator


def kubectl(*arguments: str, timeout: float = 60) -> str:
    """Standard output of kubectl. Raises AssertionError with what it said when it fails."""
    done = subprocess.run(["kubectl", *arguments], capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise AssertionError(f"kubectl {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def cordoned(*nodes: str) -> Iterator[None]:
    """Keep new pods off these nodes while the body runs."""
    try:
        for node in nodes:
            kubectl("cordon", node)
        yield
    finally:
        for node in nodes:
            kubectl("uncordon", node)


@contextlib.contextmanager
def drained(node: str, *, timeout: float) -> Iterator[str]:
    """Drain a node as an administrator would, yield what kubectl said, and uncordon it at the end."""
    try:
        yield kubectl(
            "drain",
            node,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            f"--timeout={timeout:g}s",
            timeout=timeout + 30,
        )
    finally:
        kubectl("uncordon", node)
