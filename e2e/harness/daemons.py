"""Stops and continues daemons of this machine's own cluster."""

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
    """Stop a daemon (SIGSTOP) within the context: its connections stay open but do not respond."""
    process = Machine(find_layout(os.environ, Path.home()), machine).daemon(daemon)
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ClusterError):  # it has ended; the supervisor restarts it
            process.signal(signal.SIGCONT)
