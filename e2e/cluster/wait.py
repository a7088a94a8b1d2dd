"""Waits for a condition, and names the log to read if it does not become true."""

from __future__ import annotations

import time
from collections.abc import Callable

from cluster.errors import ClusterError


def until(
    what: str,
    probe: Callable[[], bool],
    *,
    seconds: float,
    log: object,
    failed: Callable[[], bool] = lambda: False,
    every: float = 0.1,
) -> None:
    """Wait until `probe` returns True. Raises ClusterError after `seconds`, or as soon as `failed` returns True."""
    deadline = time.monotonic() + seconds
    while not probe():
        if failed():
            raise ClusterError(f"{what} ended before it was ready; its log: {log}")
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} was not ready after {seconds:.0f} s; its log: {log}")
        time.sleep(every)
