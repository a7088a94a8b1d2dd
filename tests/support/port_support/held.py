"""A port for a server of a test that nobody else gets before it listens."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

PORTS = range(20000, 30000)
"""Below those that kernels give to who connects, or binds to any."""


@contextmanager
def held_port() -> Iterator[int]:
    """Other tests of this machine, in whatever process, do not get it as long as this lasts."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket(socket.AF_UNIX) as held:
            try:
                held.bind(f"\0plimsoll-test-{port}")
                socket.create_server(("127.0.0.1", port)).close()
            except OSError:
                continue  # another test's, or another program's
            yield port
            return
    raise RuntimeError(f"none of the ports {PORTS.start} to {PORTS.stop - 1} is free")
