"""Options of the whole test suite. Triton's kernels run on a GPU, or interpreted on the CPU."""

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
    # Triton reads this at import, and it then applies to every kernel of the process.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The duration and choice of examples depend on the machine and on chance, so they must not fail a test.
settings.register_profile(
    "same",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
# Draws new examples in each run, to search for rare failures: `make test PYTEST_ARGS=--hypothesis-profile=search`.
settings.register_profile("search", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")


@pytest.fixture
def unused_tcp_port_factory() -> Iterator[Callable[[], int]]:
    """Replace pytest-asyncio's factory, whose ports another process can take before the test listens."""
    with ExitStack() as held:
        yield lambda: held.enter_context(held_port())


@pytest.fixture
def unused_tcp_port(unused_tcp_port_factory: Callable[[], int]) -> int:
    return unused_tcp_port_factory()
