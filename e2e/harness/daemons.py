"""Daemons of this machine's own cluster, stopped where they are and let go on."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from cluster.errors import ClusterError
from cluster.layout import find_layout
from cluster.machine import Machine

HUB = "control-plane"


@contextlib.contextmanager
def frozen(machine: str, daemon: str) -> Iterator[None]:
    """Keep a daemon stopped (SIGSTOP) while the body runs: its connections stay open and nothing answers on them."""
    process = Machine(find_layout(os.environ, Path.home()), machine).daemon(daemon)
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ClusterError):  # it has ended: the supervisor starts it again
            process.signal(signal.SIGCONT)
