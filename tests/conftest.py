"""Options of the whole suite. Triton's kernels run wherever they can: on a GPU, or interpreted on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from port_support.held import held_port

GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))

if not any(device.exists() for device in GPU_DEVICES):
    # Triton reads this when it is imported, and decides then what every kernel of the process becomes.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# How long an example takes, and which are drawn, says something about the machine and about luck: neither fails a test.
settings.register_profile(
    "same",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
# Draws other examples in each run: `make test PYTEST_ARGS=--hypothesis-profile=search` looks for what is rare.
settings.register_profile("search", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")


@pytest.fixture
def unused_tcp_port_factory() -> Iterator[Callable[[], int]]:
    """In place of pytest-asyncio's, whose ports anybody on the machine may be given before the test listens."""
    with ExitStack() as held:
        yield lambda: held.enter_context(held_port())


@pytest.fixture
def unused_tcp_port(unused_tcp_port_factory: Callable[[], int]) -> int:
    return unused_tcp_port_factory()
