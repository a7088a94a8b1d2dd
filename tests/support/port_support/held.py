"""A reserved port for a test's server."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

PORTS = range(20000, 30000)
"""Below the ports that kernels assign to clients and to port 0."""


@contextmanager
def held_port() -> Iterator[int]:
    """Reserve a port for the block: no other test on this machine, in any process, gets it."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket(socket.AF_UNIX) as held:
            try:
                held.bind(f"\0plimsoll-test-{port}")
                socket.create_server(("127.0.0.1", port)).close()
            except OSError:
                continue  # used by another test or program
            yield port
            return
    raise RuntimeError(f"none of the ports {PORTS.start} to {PORTS.stop - 1} is free")
