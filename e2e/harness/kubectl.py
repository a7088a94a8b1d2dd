"""kubectl, for operations that no single API call does, such as drain."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator


def kubectl(*arguments: str, timeout: float = 60) -> str:
    """Run kubectl and return its standard output. Raises AssertionError with its output on failure."""
    done = subprocess.run(["kubectl", *arguments], capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise AssertionError(f"kubectl {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def cordoned(*nodes: str) -> Iterator[None]:
    """Keep new pods off these nodes within the context."""
    try:
        for node in nodes:
            kubectl("cordon", node)
        yield
    finally:
        for node in nodes:
            kubectl("uncordon", node)


@contextlib.contextmanager
def drained(node: str, *, timeout: float, selector: str = "") -> Iterator[str]:
    """Drain a node like an administrator, yield kubectl's output, and uncordon it at the end. With `selector`, only
    pods with these labels are evicted.
    """
    try:
        yield kubectl(
            "drain",
            node,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            f"--timeout={timeout:g}s",
            *([f"--pod-selector={selector}"] if selector else []),
            timeout=timeout + 30,
        )
    finally:
        kubectl("uncordon", node)
